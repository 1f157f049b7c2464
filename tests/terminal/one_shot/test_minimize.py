"""E6: `nncdbg print --minimize` prints a training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import pytest

import nncdbg
from nncdbg.terminal.main import main

NET = """#nncdbg 1
opset 21
state %encoder.w: f32[8,4] = RandomNormal(seed=1.0, shape=[8,4])
state %head.w: f32[4,2] = RandomNormal(seed=2.0, shape=[4,2])

graph @main(%x: f32[N,8]) -> (%l: f32[]) {
  %h = MatMul(%x, %encoder.w)
  %a = Tanh(%h)
  %y = MatMul(%a, %head.w)
  %q = Mul(%y, %y)
  %l: f32[] = ReduceMean(%q, keepdims=0)
  return %l
}
"""


def printed(folder: Path, *options: str, model: str = "net.nnc") -> nncdbg.Program:
    (folder / "net.nnc").write_text(NET)
    target = folder / "train.nnc"
    assert main(["print", str(folder / model), *options, "-o", str(target)]) == 0
    return nncdbg.load(target)


def test_the_printed_training_is_that_of_minimize(tmp_path: Path) -> None:
    """E6."""
    words = "--minimize %l --optimizer AdamW,lr=0.01,weight_decay=0.1 --freeze encoder.*"
    program = printed(tmp_path, *f"{words} --batch 32 --epochs 5 --shuffle 3".split())
    expected = nncdbg.minimize(
        nncdbg.parse(NET), "l", optimizer="AdamW", lr=0.01, weight_decay=0.1, freeze="encoder.*",
        batch=32, epochs=5, shuffle=3,
    )  # fmt: skip
    assert program == expected
    losses = nncdbg.run(program, {"x": np.ones((64, 8), np.float32)})["l"]
    assert losses.shape == (10,)
    assert losses[-1] < losses[0]


def test_inputs_get_a_gradient_but_no_update(tmp_path: Path) -> None:
    """E6: inputs get gradients, but no update statement."""
    program = printed(
        tmp_path,
        *["--minimize", "l", "--gradient", "x", "--parameters", "head.*", "--optimizer", "SGD,lr=0.1"],
    )
    assert [value.name for value in program.graph.outputs] == ["l", "d_x"]
    (update,) = [node for node in program.graph.nodes if node.op == "update"]
    assert [state.name for state in update.outputs] == ["head.w"]


def test_the_steps_are_those_of_the_training(tmp_path: Path) -> None:
    text = NET.replace("(%x: f32[N,8])", "()").replace("%h =", "%x = RandomNormal(shape=[3,8])\n  %h =")
    (tmp_path / "drawn.nnc").write_text(text)
    program = printed(
        tmp_path, *["--minimize", "l", "--optimizer", "SGD,lr=0.1", "--steps", "7"], model="drawn.nnc"
    )
    assert program.runs[0].steps == 7
    assert nncdbg.run(program)["l"].shape == (7,)


def test_the_weights_of_an_onnx_model_become_states(tmp_path: Path) -> None:
    weight = onnx.helper.make_tensor("w", 1, [8, 16], np.linspace(-1, 1, 128, dtype=np.float32))
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["y"]),
        onnx.helper.make_node("Mul", ["y", "y"], ["q"]),
        onnx.helper.make_node("ReduceMean", ["q"], ["l"], keepdims=0),
    ]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes, "net", [value("x", 1, ["N", 8])], [value("l", 1, [])], initializer=[weight]
    )
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)]), tmp_path / "net.onnx"
    )
    words = "--minimize l --optimizer SGD,lr=0.1 --batch 4 --epochs 3"
    program = printed(tmp_path, *words.split(), model="net.onnx")
    assert [state.value.name for state in program.states] == ["w"]
    losses = nncdbg.run(program, {"x": np.ones((8, 8), np.float32)})["l"]
    assert losses.shape == (6,)
    assert losses[-1] < losses[0]


REFUSED = """
--optimizer SGD,lr=1                       | --optimizer describes a training, but no value is minimized
--shuffle 0                                | --shuffle describes a training
--minimize z                               | @main does not compute %z
--minimize l --optimizer Foo,lr=1          | no optimizer Foo
--minimize l --optimizer SGD,lr            | --optimizer: 'lr' is no attribute
--minimize l --optimizer SGD,lr=x          | --optimizer: lr is not a number: 'x'
--minimize l --optimizer SGD,rate=1        | nncdbg.SGD has no attribute 'rate'
--minimize l --optimizer SGD,steps=1       | SGD has no attribute 'steps'
--minimize l                               | the learning rate is missing
--minimize l --optimizer SGD,lr=1 --gradient q     | @main has no input %q
--minimize l --optimizer SGD,lr=1 --parameters no* | no*
--minimize l --optimizer SGD,lr=1 --batch 0        | batch cannot be 0
--minimize l --optimizer SGD,lr=1 --shuffle -1     | shuffle cannot be -1
"""


@pytest.mark.parametrize("row", REFUSED.strip().split("\n"))
def test_refused_options(row: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options, message = (each.strip() for each in row.split("|"))
    (tmp_path / "net.nnc").write_text(NET)
    assert main(["print", str(tmp_path / "net.nnc"), *options.split()]) in (2, 3)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert "hint: " in printed.err
