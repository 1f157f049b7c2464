"""States saved in files, and programs that begin with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file, save_file

import nncdbg
from nncdbg.dtypes import NUMPY
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
    """G2, P11: loaded, missing, unused, another type; a moment that is missing is no difference."""
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


FIRST = {
    "w": np.ones((2, 2), np.float32),
    "m": np.ones((2, 2), np.float32),
    "b": np.ones(2, np.float32),
    "count": np.int64(3),
    "done": np.bool_(True),
}


@pytest.mark.parametrize(
    ("change", "counts", "code"),
    [
        ({}, (5, 0, 0, 0), 0),
        ({"b": None, "count": None}, (3, 2, 0, 0), 3),
        ({"more": np.ones(1)}, (5, 0, 1, 0), 3),
        ({"w": np.ones((3, 2), np.float32)}, (4, 0, 0, 1), 3),
        ({"b": np.ones(2, np.float64)}, (4, 0, 0, 1), 3),
        ({"m": None}, (4, 0, 0, 0), 0),
    ],
)
def test_each_kind_of_difference_is_counted(
    program: Path, tmp_path: Path, change: dict[str, Any], counts: tuple[int, ...], code: int
) -> None:
    """G2, P11: loaded, missing, unused, wrong shape or type; with --strict-states, exit code 3."""
    file = tmp_path / "w.safetensors"
    save_file({name: np.asarray(each) for name, each in (FIRST | change).items() if each is not None}, file)
    found = nncdbg.load_states(program, file)
    assert (len(found.loaded), len(found.missing), len(found.unused), len(found.unfit)) == counts
    assert main(["run", str(program), "--states", str(file), "--strict-states"]) == code
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


INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
FLOATS = ("f16", "bf16", "f32", "f64", "f8e4m3fn", "f8e5m2")


@pytest.mark.parametrize(
    ("type", "data"),
    [
        *((f"{name}[]", np.array(np.iinfo(NUMPY[name]).max, NUMPY[name])) for name in INTEGERS),
        *((f"{name}[]", np.array(-1.5).astype(NUMPY[name])) for name in FLOATS),
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


ADAM = """#nncdbg 1
opset 18

state %w: f32[3] = [1.0, -2.0, 0.5]
state %m: f32[3] = zeros for %w
state %v: f32[3] = zeros for %w
state %step: i64[] = 0
state %epoch: i32[] = 7
state %best: f64[] = 1e300
state %improved: bool[] = false

graph @train() -> (%l: f32[]) {
  %l: f32[] = ReduceL2(%w, keepdims=0)
  %w.1, %m.1, %v.1, %step.1 = nncdbg.Adam(%w, %w, %m, %v, %step, lr=0.1)
  %wide: f64[] = Cast(%l, to=11)
  %less: bool[] = Less(%wide, %best)
  %best.1: f64[] = Min(%wide, %best)
  %epoch.1: i32[] = Add(%epoch, 1)
  update %w = %w.1, %m = %m.1, %v = %v.1, %step = %step.1, %best = %best.1
  update %improved = %less, %epoch = %epoch.1
  return %l
}

run @train steps 2
"""


def test_text_and_states_continue_a_training_with_the_same_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """G3: moments, an int counter, an int32 epoch, an f64 and a bool; two steps and two more are four."""
    text, file = tmp_path / "adam.nnc", tmp_path / "states.safetensors"
    text.write_text(str(nncdbg.parse(ADAM)))
    assert main(["run", str(text), "--save-states", str(file)]) == 0
    assert main(["run", str(text), "--states", str(file), "--strict-states", "--save-states", str(file)]) == 0
    assert "7 states loaded" in capsys.readouterr().err
    whole = nncdbg.Debugger(nncdbg.load(text, steps=4))
    assert whole.run().reason == "end"
    saved = load_file(file)
    assert {name: (array.dtype, array.tobytes()) for name, array in saved.items()} == {
        name: (array.dtype, array.tobytes()) for name, array in whole.states.items()
    }
    assert [saved[name].item() for name in ("step", "epoch", "improved")] == [4, 11, True]


def test_text_and_states_run_in_a_process_without_the_model_code(tmp_path: Path) -> None:
    """P9: the program is the text, its tensors are in the file by name; no builder is imported."""
    b = nncdbg.Builder(opset=18)
    layers = nncdbg.Layers(b, seed=3)
    with b.graph("net"):
        h = b.Relu(layers.linear("hidden", b.input("x", "f32[N,4]"), 8))
        b.returns(layers.linear("out", h, 2))
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    debugger = nncdbg.Debugger(b.program(), {"x": x})
    assert debugger.run().reason == "end"
    (tmp_path / "net.nnc").write_text(str(b.program()))
    nncdbg.save_states(
        {name: value + 1 for name, value in debugger.states.items()}, tmp_path / "net.safetensors"
    )
    np.save(tmp_path / "x.npy", x)
    script = (
        "import sys, numpy, nncdbg\n"
        "found = nncdbg.load_states('net.nnc', 'net.safetensors', strict_states=True)\n"
        "outputs = nncdbg.run(found.program, {'x': 'x.npy'})\n"
        "assert 'nncdbg.engine.building.layers' not in sys.modules\n"
        "numpy.save('y.npy', next(iter(outputs.values())))\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    states = {name: value + 1 for name, value in debugger.states.items()}
    hidden = np.maximum(x @ states["hidden.weight"].T + states["hidden.bias"], 0)
    wanted = hidden @ states["out.weight"].T + states["out.bias"]
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), wanted, rtol=1e-5)


def test_the_core_needs_no_optional_package(tmp_path: Path) -> None:
    """P12: load, step, run, save and load with cupy, debugpy, pygls, rich, torch and the others blocked."""
    blocked = ("cupy", "debugpy", "pygls", "lsprotocol", "rich", "torch", "onnxruntime", "matplotlib", "PIL")
    script = (
        "import sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {blocked!r}:\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Blocked())\n"
        "import nncdbg\n"
        "debugger = nncdbg.Debugger('train.nnc')\n"
        "debugger.step_over()\n"
        "assert debugger.run().reason == 'end'\n"
        "nncdbg.save_states(debugger.states, 's.safetensors')\n"
        "assert nncdbg.load_states('train.nnc', 's.safetensors').complete\n"
        "nncdbg.write_onnx('train.nnc', 'm.onnx')\n"
        "assert nncdbg.load('m.onnx', training=True).states\n"
        "assert nncdbg.watch('train.nnc').ok\n"
    )
    (tmp_path / "train.nnc").write_text(ADAM)
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)


def test_states_go_into_an_onnx_training_and_come_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The initializers of a written model are the states, those of its algorithm included."""
    text, file, trained = (tmp_path / name for name in ("adam.nnc", "states.safetensors", "trained.onnx"))
    text.write_text(ADAM)
    assert main(["run", str(text), "--save-states", str(file)]) == 0
    assert main(["print", str(text), "--states", str(file), "-o", str(trained)]) == 0
    assert (
        main(["run", str(trained), "--training", "--save-states", str(tmp_path / "third.safetensors")]) == 0
    )
    assert load_file(tmp_path / "third.safetensors")["step"] == 3
    assert main(["run", str(text), "--states", str(trained), "--strict-states"]) == 0
    assert "7 states loaded" in capsys.readouterr().err
    saved = load_file(file)
    back = nncdbg.Debugger(nncdbg.load_states(text, trained).program)
    back.break_at(graph="train")
    assert back.run().reason == "breakpoint"
    assert {name: array.tobytes() for name, array in back.states.items()} == {
        name: saved[name].tobytes() for name in back.states
    }


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


def test_states_that_an_arena_frees_are_not_saved(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "states.safetensors"
    arguments = ["run", str(program), "--allocator", "arena", "--save-states", str(file)]
    assert main(arguments) == 2
    assert "the allocator arena frees a state after its last use" in capsys.readouterr().err
    assert not file.exists()
    assert main([*arguments, "--in-place-states"]) == 0
    assert len(load_file(file)) == 5
