"""States saved in files, and programs that begin with them."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file, save_file

import nncdbg
from nncdbg.terminal.main import main

PROGRAM = """#nncdbg 1
opset 18

state %w: f32[2,2] = RandomNormal(seed=1.0, shape=[2,2])
state %m: f32[2,2] = zeros for %w
state %b: f32[2] = [1.0, 2.0]
state %count: i64[] = 0
state %done: bool[] = false

graph @step() -> (%s: f32[]) {
  %w.1 = Mul(%w, 0.5)
  %count.1 = Add(%count, 1)
  update %w = %w.1, %count = %count.1
  %s = ReduceSum(%w, keepdims=0)
  return %s
}

run @step steps 3
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "train.nnc"
    file.write_text(PROGRAM)
    return file


def test_a_training_continues_from_its_saved_states(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "states.safetensors"
    assert main(["run", str(program), "--save-states", str(file)]) == 0
    assert f"saved 5 states in {file}" in capsys.readouterr().err
    saved = load_file(file)
    assert saved["count"] == 3
    assert saved["done"].dtype == bool
    # The states are read from the file that is written again.
    assert main(["run", str(program), "--states", str(file), "--save-states", str(file)]) == 0
    assert f"5 states loaded from {file}" in capsys.readouterr().err
    again = load_file(file)
    assert again["count"] == 6
    assert np.array_equal(again["w"], saved["w"] / 8)


def test_lines_and_breakpoints_stay_those_of_the_text(program: Path, tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    save_file({"w": np.full((2, 2), 3, np.float32)}, file)
    found = nncdbg.load_states(program, file)
    debugger = nncdbg.Debugger(found.program)
    debugger.step_over()
    assert np.array_equal(debugger.value("%w"), np.full((2, 2), 3))
    debugger.break_at(line=11)
    assert debugger.run().line == 11
    assert debugger.frames[0].code.graph.name == "step"


def test_the_report_has_each_kind_of_difference(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """G2: loaded, missing, unused, another type; a moment that is missing is no difference."""
    file = tmp_path / "w.safetensors"
    save_file({"w": np.ones((2, 3), np.float32), "b": np.ones(2, np.float32), "more": np.ones(1)}, file)
    found = nncdbg.load_states(program, file)
    assert found.loaded == ("b",)
    assert found.missing == ("count", "done")
    assert found.moments == ("m",)
    assert found.unused == ("more",)
    assert found.unfit == (("w", "f32[2,2]", "f32[2,3]"),)
    assert str(found) == (
        f"1 state loaded from {file}; 2 missing: %count, %done; 1 of an optimizer missing: %m; "
        "1 not used: %more; 1 with another type: %w is f32[2,2], in the file f32[2,3]"
    )
    assert main(["run", str(program), "--states", str(file), "--strict-states"]) == 3
    assert "2 missing: %count, %done" in capsys.readouterr().err
    assert main(["run", str(program), "--states", str(file)]) == 0


def test_weights_of_an_onnx_model_are_states(program: Path, tmp_path: Path) -> None:
    weight = np.array([[1, 2], [3, 4]], np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
        [numpy_helper.from_array(weight, "w")],
    )
    onnx.save(helper.make_model(graph, ir_version=9), tmp_path / "model.onnx")
    found = nncdbg.load_states(program, tmp_path / "model.onnx")
    assert found.loaded == ("w",)
    debugger = nncdbg.Debugger(found.program)
    debugger.step_over()
    assert np.array_equal(debugger.value("%w"), weight)


@pytest.mark.parametrize(
    ("type", "data"),
    [
        ("f64[2]", np.array([1.5, np.nan])),
        ("bf16[2]", np.array([1.5, 2], ml_dtypes.bfloat16)),
        ("i4[3]", np.array([1, -8, 7], ml_dtypes.int4)),
        ("c128[1]", np.array([1 + 2j])),
        ("bool[]", np.array(True)),
        ("str[2]", np.array(["a", "ü"], object)),
        ("i64[]", np.array(7)),
    ],
)
def test_states_of_any_type_make_the_round_trip(type: str, data: np.ndarray, tmp_path: Path) -> None:
    """G3."""
    b = nncdbg.Builder()
    b.state("s", type, data)
    with b.graph("net"):
        b.returns()
    program = b.program()
    debugger = nncdbg.Debugger(program)
    debugger.run()
    nncdbg.save_states(debugger.states, tmp_path / "s.safetensors")
    found = nncdbg.load_states(program, tmp_path / "s.safetensors")
    assert found.complete
    again = nncdbg.Debugger(found.program)
    again.run()
    assert again.states["s"].dtype == debugger.states["s"].dtype
    assert repr(again.states["s"].tolist()) == repr(debugger.states["s"].tolist())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing.safetensors", "does not exist"),
        ("text.safetensors", "cannot read"),
        ("train.nnc", "cannot read"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error(program: Path, tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "text.safetensors").write_text("{}")
    with pytest.raises(nncdbg.LoadError, match=words):
        nncdbg.load_states(program, tmp_path / name)


def test_a_program_without_states_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    save_file({"w": np.ones(2)}, file)
    text = "#nncdbg 1\nopset 18\n\ngraph @main(%x: f32[2]) -> (%x: f32[2]) {\n  return %x\n}\n"
    with pytest.raises(nncdbg.LoadError, match="has no states"):
        nncdbg.load_states(nncdbg.parse(text), file)
