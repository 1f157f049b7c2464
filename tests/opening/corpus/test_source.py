"""Programs that workers receive: pickled programs and arguments of calls."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import nncdbg
from nncdbg.engine.frontends.tensor_file import write_store
from nncdbg.opening.corpus.source import called_program

EXAMPLES = sorted(Path("examples").glob("*.nnc"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_a_pickled_program_has_the_same_graphs_and_lines(path: Path) -> None:
    program = nncdbg.load(path)
    copy = pickle.loads(pickle.dumps(program))
    assert copy == program
    assert copy.text() == program.text()
    assert copy.as_listing() == program.as_listing()


PREFIXED = """#nncdbg 1
prefix a "/encoder/layer/"
graph @main(%a::x: f32[2]) -> (%a::y: f32[2]) {
  %a::y = Neg(%a::x)
  return %a::y
}
"""


def test_a_pickled_program_keeps_its_prefixes() -> None:
    program = nncdbg.parse(PREFIXED)
    full = "  %/encoder/layer/y = Neg(%/encoder/layer/x)"
    assert program.as_listing().full_line(4) == full
    copy = pickle.loads(pickle.dumps(program))
    assert copy.as_listing().full_line(4) == full
    assert copy.text() == program.text()


def onnx_model(weight: Any) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64])],
        [onnx.numpy_helper.from_array(np.float32(weight), "w")],
    )
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def result(program: nncdbg.Program) -> Any:
    debugger = nncdbg.Debugger(program, {"x": np.zeros(64, np.float32)})
    debugger.run()
    return debugger.value("y")


def test_a_pickled_program_reads_the_weights_of_its_file(tmp_path: Path) -> None:
    """Weights of a file are not copied: the copy opens the file again."""
    weight = np.arange(64)
    path = tmp_path / "model.onnx"
    onnx.save(onnx_model(weight), str(path))
    packed = pickle.dumps(nncdbg.load(path))
    assert np.float32(weight).tobytes() not in packed
    assert np.array_equal(result(pickle.loads(packed)), weight)
    write_store(tmp_path / "w.safetensors", {"w": weight.astype(np.float32)})
    text = """#nncdbg 1
store "w.safetensors"
graph @main(%x: f32[64]) -> (%y: f32[64]) {
  %w: f32[64] = data("w")
  %y = Add(%x, %w)
  return %y
}
"""
    (tmp_path / "model.nnc").write_text(text)
    packed = pickle.dumps(nncdbg.load(tmp_path / "model.nnc"))
    assert np.float32(weight).tobytes() not in packed
    assert np.array_equal(result(pickle.loads(packed)), weight)


def test_a_pickled_program_in_memory_has_its_weights() -> None:
    weight = np.arange(64)
    copy = pickle.loads(pickle.dumps(nncdbg.load(onnx_model(weight))))
    assert np.array_equal(result(copy), weight)


def test_workers_open_a_path_and_receive_another_source(tmp_path: Path) -> None:
    path = tmp_path / "model.nnc"
    path.write_text(PREFIXED)
    source, loaded = called_program(path, {"x": "ones"}, {"backend": None, "seed": 3})
    assert source.configuration.program == str(path)
    assert source.configuration.given == {"seed", "inputs"}
    copy = pickle.loads(pickle.dumps(source))
    assert copy.program is None
    assert copy.opened().program == loaded
    source, _ = called_program(loaded, None, {})
    assert pickle.loads(pickle.dumps(source)).program == loaded


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"backends": "numpy"}, TypeError, "unexpected argument 'backends'"),
        ({"journal": "run.db"}, TypeError, "unexpected argument 'journal'"),
        ({"backend": object()}, nncdbg.UsageError, "the backend of a corpus must be a name, not a object"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        called_program(nncdbg.parse(PREFIXED), None, arguments)
