"""Invalid ONNX files: errors of `run`, `print` and the prompt."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from nncdbg.engine.ops.schema import newest_opset

Command = Callable[..., tuple[int, str, str]]


def typed(name: str, shape: list[Any], kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


X, Y = typed("x", [2, 3]), typed("y", [2, 3])
RELU = helper.make_node("Relu", ["x"], ["y"])
ADD = helper.make_node("Add", ["x", "w"], ["y"])
WEIGHT = numpy_helper.from_array(np.ones((2, 3), np.float32), "w")


def model(nodes: Any = (RELU,), inputs: Any = (X,), outputs: Any = (Y,), **fields: Any) -> Any:
    """Return a model in opset 18, or in the versions `opsets` and `ir`."""
    opsets = {"": 18, **fields.pop("opsets", {})}
    ir = fields.pop("ir", 10)
    graph = helper.make_graph(list(nodes), "main", list(inputs), list(outputs), **fields)
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir)


def weight(**fields: Any) -> Any:
    """Return a model with a weight f32[2,3] that `fields` make invalid."""
    tensor = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2, 3])
    tensor.MergeFrom(onnx.TensorProto(**fields))
    return model([ADD], initializer=[tensor])


def node(op: str, inputs: str, outputs: str, **fields: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), **fields)


TRUTH = numpy_helper.from_array(np.array(True), "true")


def hiding(name: str) -> Any:
    """Return an `If` node with branches that define `name`."""
    then, otherwise = (
        helper.make_graph([node("Neg", "x", name)], arm, [], [typed(name, [2, 3])])
        for arm in ("then", "otherwise")
    )
    return helper.make_node("If", ["true"], ["g"], then_branch=then, else_branch=otherwise)


def save(made: Any, name: str = "m.onnx") -> str:
    Path(name).write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    return name


UNREADABLE: dict[str, tuple[Any, str]] = {
    "newer IR": (model(ir=99), f"IR version 99; nncdbg reads versions 1 to {onnx.IR_VERSION}"),
    "empty": (b"", "m.onnx is empty"),
    "prose": (b"no model, but words\n" * 9, "m.onnx is text, not an ONNX model"),
    "cut off": (model([RELU], initializer=[WEIGHT]).SerializeToString()[:-30], "is not an ONNX model"),
    "too few bytes": (weight(raw_data=bytes(20)), 'tensor "w" f32[2,3] needs 24 bytes, but has 20'),
    "too many bytes": (weight(raw_data=bytes(28)), 'tensor "w" f32[2,3] needs 24 bytes, but has 28'),
    "too few numbers": (weight(float_data=[1.0] * 5), 'tensor "w"'),
    "initialiser twice": (model([ADD], initializer=[WEIGHT, WEIGHT]), "%w is defined twice"),
    "input twice": (model(inputs=[X, X]), "%x is defined twice"),
    "value twice": (
        model([node("Relu", "x", "y"), node("Neg", "x", "y")]),
        "%y is defined twice in graph @main: by Relu -> %y and by Neg -> %y",
    ),
    "value twice in one node": (model([node("Split", "x", "y y", num_outputs=2)]), "%y is defined twice"),
    "node writes an input": (model([node("Relu", "x", "x")], outputs=[X]), "%x is defined twice"),
    "node writes an initialiser": (
        model([node("Relu", "x", "w")], outputs=[typed("w", [2, 3])], initializer=[WEIGHT]),
        "%w is defined twice",
    ),
    "value in a branch and around it": (
        model([node("Relu", "x", "h"), hiding("h"), node("Neg", "h", "y")], initializer=[TRUTH]),
        "%h is defined in graph @then and in an enclosing graph",
    ),
    "output never computed": (model(outputs=[Y, typed("z", [2])]), "returns %z, which is not defined"),
    "output without a name": (model(outputs=[typed("", [2])]), "which is not defined"),
    "operand never computed": (model([node("Add", "x h", "y")]), "reads %h, which is not defined"),
    "cycle": (
        model([node("Add", "x b", "a"), node("Relu", "a", "b"), node("Neg", "b", "y")]),
        "has a cycle of 2 nodes",
    ),
    "node that reads itself": (model([node("Add", "x y", "y")]), "has a cycle of 1 node\n"),
}


@pytest.mark.parametrize(("content", "message"), UNREADABLE.values(), ids=UNREADABLE)
def test_an_unreadable_file_is_one_error_with_a_hint(command: Command, content: Any, message: str) -> None:
    save(content)
    for mode in (["run"], ["print"], []):
        code, out, err = command(*mode, "m.onnx")
        assert (code, out) == (3, "")
        assert err.startswith("error: ")
        assert message in err
        assert err.count("\n  hint: ") == 1


def test_a_folder_is_refused(command: Command, tmp_path: Path) -> None:
    for name in ("folder", "folder.onnx"):
        (tmp_path / name).mkdir()
        for mode in (["run"], ["print"], []):
            code, out, err = command(*mode, name)
            assert (code, out) == (3, "")
            assert err.startswith(f"error: {name} is a directory\n  hint: ")


OPSETS = {
    "newer": ({"": 99}, f"opset 99 of ONNX is unknown: nncdbg supports versions 1 to {newest_opset()}"),
    "none": ({"": 0}, "opset 0 of ONNX is unknown"),
    "negative": ({"": -3}, "opset -3 of ONNX is unknown"),
}


@pytest.mark.parametrize(("opsets", "message"), OPSETS.values(), ids=OPSETS)
def test_unknown_opsets_are_printed_but_not_run(
    command: Command, opsets: dict[str, int], message: str
) -> None:
    assert command("print", save(model(opsets=opsets)))[0] == 0
    for mode in (["run"], []):
        code, out, err = command(*mode, "m.onnx")
        assert (code, out) == (3, "")
        assert message in err
        assert "\n  hint: " in err


def test_graph_text_with_an_unknown_opset_is_printed_but_not_run(command: Command) -> None:
    graph = "graph @main(%x: f32[2,3]) -> (%y) {\n  %y = Relu(%x)\n  return %y\n}\n"
    Path("m.nnc").write_text(f"#nncdbg 1\nopset 99\n{graph}")
    assert command("print", "m.nnc")[0] == 0
    code, _, err = command("run", "m.nnc")
    assert code == 3
    assert "opset 99 of ONNX is unknown" in err


def test_an_unknown_opset_of_another_domain_fails_only_if_used(command: Command) -> None:
    assert command("run", save(model(opsets={"ai.onnx.ml": 99})))[0] == 0
    scaled = node("Scaler", "x", "y", domain="ai.onnx.ml", offset=[1.0], scale=[2.0])
    code, _, err = command("run", save(model([scaled], opsets={"ai.onnx.ml": 99})))
    assert code == 3
    assert "opset 99 of ai.onnx.ml is unknown: nncdbg supports versions 1 to " in err
    assert command("run", save(model([scaled], opsets={"ai.onnx.ml": 3})))[0] == 0
    assert command("run", save(model(opsets={"com.example": 99})))[0] == 0


def test_an_op_of_a_later_opset_is_reported_with_that_opset(command: Command) -> None:
    code, _, err = command("run", save(model([node("Gelu", "x", "y")])))
    assert code == 3
    assert "Gelu has no kernel in opset 18" in err
    assert "import opset 20" in err


def test_an_op_of_a_custom_domain_is_shown_stepped_up_to_and_run_by_a_library(command: Command) -> None:
    swirl = node("Swirl", "h", "y", domain="com.example.models", angle=0.25)
    save(model([node("Relu", "x", "h"), swirl], opsets={"com.example.models": 1}))
    code, out, _ = command("print", "m.onnx")
    assert code == 0
    assert "com.example.models.Swirl(%h, angle=0.25)" in out
    code, out, err = command("m.onnx", "--input", "x=ones", typed="n\np sum(%h)\nn\n")
    assert code == 3
    assert "6.0" in out
    assert "com.example.models.Swirl has no kernel" in err
    code, out, err = command("run", "m.onnx")
    assert (code, out) == (3, "")
    assert "with %h: f32[2,3]" in err
    assert "--op-library FILE.py" in err
    Path("mine.py").write_text(
        "import nncdbg\n\n@nncdbg.op('com.example.models.Swirl')\n"
        "def swirl(xp, x, *, angle=0.5):\n    return x + xp.float32(angle)\n"
    )
    code, out, _ = command("run", "m.onnx", "--input", "x=ones", "--op-library", "mine.py")
    assert code == 0
    assert "1.25" in out


def test_sizes_that_disagree_name_the_op_both_shapes_and_their_origin(command: Command) -> None:
    inputs = [typed("a", ["N", 3]), typed("b", ["M", 3])]
    add = [node("Relu", "a", "h"), node("Add", "h b", "y")]
    save(model(add, inputs, [typed("y", [None, 3])]))
    for name, size in (("a", 4), ("b", 5)):
        np.save(f"{name}.npy", np.zeros((size, 3), np.float32))
    given = ["--input", "a=a.npy", "--input", "b=b.npy"]
    code, out, err = command("run", "m.onnx", *given)
    assert (code, out) == (4, "")
    for message in (
        "Add: shapes [4,3] and [5,3] do not broadcast",
        "%y = Add(%h, %b) : f32[?,3]",
        "with %h: f32[4,3]",
        "with %b: f32[5,3]",
        "N=4 is axis 0 of input %a",
        "M=5 is axis 0 of input %b",
    ):
        assert message in err
    inputs[1] = typed("b", ["N", 3])
    save(model(add, inputs, [typed("y", [None, 3])]))
    code, _, err = command("run", "m.onnx", *given)
    assert code == 2
    assert "axis 0 is N=5, but N=4 in %a" in err


def test_outputs_can_be_inputs_initialisers_or_repeated(command: Command) -> None:
    made = model([RELU], [X], [X, Y, typed("w", [2, 3]), Y], initializer=[WEIGHT])
    code, out, _ = command("run", save(made), "--input", "x=ones")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["%x", "%y", "%w"]
    code, out, _ = command("m.onnx", "--input", "x=ones", typed="n\nn\n")
    assert code == 0
    assert "The program has ended" in out
    code, out, _ = command("run", save(model([], [], [typed("w", [2, 3])], initializer=[WEIGHT])))
    assert code == 0
    assert out.startswith("%w f32[2,3]")


# -- endless loops ------------------------------------------------------------------------------


def endless() -> Any:
    """Return a model with a `Loop` without a trip count and a condition that stays true."""
    body = helper.make_graph(
        [node("Identity", "c", "go"), node("Relu", "s", "t")],
        "body",
        [typed("i", [], TensorProto.INT64), typed("c", [], TensorProto.BOOL), typed("s", [2, 3])],
        [typed("go", [], TensorProto.BOOL), typed("t", [2, 3])],
    )
    loop = helper.make_node("Loop", ["", "true", "x"], ["y"], body=body)
    return model([loop], initializer=[TRUTH])


def test_max_ops_ends_an_endless_loop(command: Command) -> None:
    code, out, err = command("run", save(endless()), "--max-ops", "200")
    assert (code, out) == (4, "")
    assert "the program has not ended after 200 statements (max-ops 200)" in err
    code, out, err = command("m.onnx", "--max-ops", "200", "--input", "x=ones", typed="c\np sum(%s)\nc\n")
    assert code == 0
    assert "Paused: the program has not ended after 200 statements" in out
    assert "Paused: the program has not ended after 400 statements" in out
    assert "6.0" in out


def test_max_ops_ends_a_graph_without_loops(command: Command) -> None:
    names = ["x", *(f"v{index}" for index in range(999)), "y"]
    chain = [node("Neg", before, after) for before, after in zip(names, names[1:], strict=False)]
    save(model(chain))
    code, out, err = command("run", "m.onnx", "--max-ops", "10")
    assert (code, out) == (4, "")
    assert "the program has not ended after 10 statements (max-ops 10)" in err
    assert command("run", "m.onnx", "--max-ops", "1000")[0] == 0


@pytest.mark.parametrize("backend", ["numpy", "onnxruntime"])
def test_an_interrupt_ends_an_endless_loop(tmp_path: Path, backend: str) -> None:
    pytest.importorskip(backend)
    (tmp_path / "m.onnx").write_bytes(endless().SerializeToString())
    command = [sys.executable, "-m", "nncdbg", "run", "m.onnx", "--backend", backend]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stderr is not None
    # The note on the inputs is printed directly before the run.
    assert b"note: input %x" in process.stderr.readline()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in err


# -- gigabytes ----------------------------------------------------------------------------------


def test_three_gigabytes_of_external_data_are_not_read(command: Command, tmp_path: Path) -> None:
    """The data file is sparse: it uses no disk space, and unread pages use no memory."""
    rows = 3 << 20
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(rows * 256 * 4)
        file.seek((rows - 1) * 256 * 4)
        file.write(np.ones(256, np.float32).tobytes())
    tensor = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[rows, 256])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    pick = numpy_helper.from_array(np.array([0, rows - 1]), "k")
    save(model([node("Gather", "w k", "y")], [], [typed("y", [2, 256])], initializer=[tensor, pick]))
    assert command("print", "m.onnx")[0] == 0
    code, out, _ = command("run", "m.onnx")
    assert code == 0
    assert "f32[2,256] min 0 mean 0.5 max 1" in out


def test_a_protobuf_of_more_than_two_gigabytes_is_refused(command: Command, tmp_path: Path) -> None:
    with (tmp_path / "m.onnx").open("wb") as file:
        file.write(model().SerializeToString())
        file.truncate(5 << 29)
    for mode in (["run"], ["print"], []):
        code, out, err = command(*mode, "m.onnx")
        assert (code, out) == (3, "")
        assert "m.onnx has 2684354560 bytes" in err
        assert "save_as_external_data=True" in err


EXTERNAL: dict[str, tuple[dict[str, str], str]] = {
    "missing": ({"location": "none.bin"}, "which does not exist"),
    "short": ({"location": "w.bin", "offset": "8"}, "needs bytes 8 to 32 of"),
    "another length": (
        {"location": "w.bin", "length": "20"},
        "needs 24 bytes, but the model assigns it 20 bytes of w.bin",
    ),
    "parent folder": ({"location": "../w.bin"}, "outside the model's folder"),
    "absolute path": ({"location": "/etc/hostname"}, "outside the model's folder"),
    "symbolic link": ({"location": "link.bin"}, "outside the model's folder"),
    "a folder": ({"location": "."}, "which is not a file"),
    "no name": ({}, "no file name"),
}


@pytest.mark.parametrize(("entries", "message"), EXTERNAL.values(), ids=EXTERNAL)
def test_invalid_external_data_is_an_error(
    command: Command, tmp_path: Path, entries: dict[str, str], message: str
) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(24))
    (tmp_path / "link.bin").symlink_to(sys.executable)
    made = weight(data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        made.graph.initializer[0].external_data.add(key=key, value=value)
    for mode in (["run"], ["print"], []):
        code, out, err = command(*mode, save(made))
        assert (code, out) == (3, "")
        assert 'error: tensor "w"' in err
        assert message in err
        assert err.count("\n  hint: ") == 1
