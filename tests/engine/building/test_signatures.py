"""E10: inputs, results and carried values of an edited program, in graphs and in their calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.errors import GraphError, NncdbgError, UsageError

X = np.array([[0.5, -1.0, 2.0], [1.0, 0.25, -0.5]], np.float32)

LAYERS = """
graph @main(%x: f32[N,3]) -> (%y: f32[N,3]) {
  %a = @layer(%x)
  %y = @layer(%a)
  return %y
}

graph @layer(%x: f32[N,3]) -> (%y: f32[N,3]) {
  %h = Tanh(%x)
  %y = Mul(%h, 2.0)
  return %y
}
"""

TRAINING = """opset 18
state %w: f32[3,1] = [[0.5], [1.0], [-0.5]]

graph @train(%x: f32[N,3]) -> (%l: f32[]) {
  %l: f32[], saved %s = @loss(%x)
  %d_w: f32[3,1] = @loss.backward(1.0, %s)
  %w.1: f32[3,1] = nncdbg.SGD(%w, %d_w, lr=0.1)
  update %w = %w.1
  return %l
}

graph @loss(%x: f32[N,3]) -> (%l: f32[]) {
  %y = MatMul(%x, %w)
  %q = Mul(%y, %y)
  %l: f32[] = ReduceMean(%q, keepdims=0)
  return %l
}

backward @loss.backward of @loss by (%w)
run @train for %x batch 1
"""


def run(program: nncdbg.Program, **inputs: Any) -> dict[str, Any]:
    assert nncdbg.parse(str(program)) == program
    return dict(nncdbg.run(program, {"x": X, **inputs}))


def test_an_input_is_added_to_a_graph_and_its_calls() -> None:
    edit = nncdbg.Editor(nncdbg.parse(LAYERS))
    layer, main = edit.graph("layer"), edit.graph()
    scale = main.add_input("scale", "f32[]")
    first = layer.calls[0]
    given = layer.add_input("scale", "f32[]", lambda call: scale if call is first else 3.0)
    statement = edit.value("y", "layer").statement
    assert statement is not None
    statement.set_operand(1, given)
    program = edit.program()
    assert [value.name for value in program.graph.inputs] == ["x", "scale"]
    expected = 3 * np.tanh(0.5 * np.tanh(X))
    np.testing.assert_allclose(run(program, scale=np.float32(0.5))["y"], expected, rtol=1e-6)


def test_an_input_is_removed_from_a_graph_and_its_calls() -> None:
    text = LAYERS.replace("@layer(%x: f32[N,3])", "@layer(%k: f32[], %x: f32[N,3])")
    text = text.replace("@layer(%x)", "@layer(1.0, %x)").replace("@layer(%a)", "@layer(2.0, %a)")
    edit = nncdbg.Editor(nncdbg.parse(text))
    layer = edit.graph("layer")
    with pytest.raises(GraphError, match="%x is still read by"):
        layer.remove_input(layer.inputs[1])
    layer.remove_input(layer.inputs[0])
    assert [node.inputs for node in edit.program().graph.nodes] == [("x",), ("a",)]
    np.testing.assert_allclose(run(edit.program())["y"], 2 * np.tanh(2 * np.tanh(X)), rtol=1e-6)


def test_results_are_added_and_removed_with_those_of_the_calls() -> None:
    edit = nncdbg.Editor(nncdbg.parse(LAYERS))
    layer, main = edit.graph("layer"), edit.graph()
    first, second = layer.add_result(edit.value("h", "layer"), "hidden")
    assert (first.name, second.name) == ("hidden", "hidden.1")
    main.add_result(second)
    program = edit.program()
    got = run(program)
    np.testing.assert_allclose(got["hidden.1"], np.tanh(2 * np.tanh(X)), rtol=1e-6)
    with pytest.raises(GraphError, match="returns %h already"):
        layer.add_result(edit.value("h", "layer"))
    with pytest.raises(GraphError, match=r"%hidden.1 is still read by"):
        layer.remove_result(edit.value("h", "layer"))
    main.remove_result(second)
    layer.remove_result(edit.value("h", "layer"))
    assert edit.program() == nncdbg.Editor(nncdbg.parse(str(edit.program()))).program()
    assert list(run(edit.program())) == ["y"]


def test_a_result_of_a_differentiated_graph_has_no_cotangent() -> None:
    """The calls of the backward graph omit its cotangent, so that the losses have the same bits."""
    edit = nncdbg.Editor(nncdbg.parse(TRAINING))
    loss, train = edit.graph("loss"), edit.graph("train")
    (found,) = loss.add_result(edit.value("y", "loss"), "prediction")
    train.add_result(found)
    program = edit.program()
    assert "@loss.backward(1.0, _, %s)" in str(program)
    np.testing.assert_array_equal(run(program)["l"], run(nncdbg.parse(TRAINING))["l"])
    train.remove_result(found)
    loss.remove_result(edit.value("y", "loss"))
    assert "@loss.backward(1.0, %s)" in str(edit.program())
    np.testing.assert_array_equal(run(edit.program())["l"], run(nncdbg.parse(TRAINING))["l"])


def test_the_type_of_an_input_changes_those_of_the_other_values() -> None:
    edit = nncdbg.Editor(nncdbg.parse("graph @main(%x: f32[3]) -> (%y) {\n  %y = Neg(%x)\n  return %y\n}\n"))
    edit.graph().set_input_type(edit.value("x"), "f64[N]")
    program = edit.program()
    assert str(program.graph.outputs[0].type) == "f64[N]"
    assert nncdbg.run(program, {"x": np.ones(2)})["y"].dtype == np.float64


def test_a_loop_carries_a_further_value() -> None:
    text = """opset 21
graph @main(%x: f32[2,3]) -> (%y, %each) {
  while (%a = %x) count %i times 3 {
    %b = Mul(%a, 0.5)
    next %a = %b collect %b
  } -> (%y = %a, %each = collect[0])
  return %y, %each
}
"""
    edit = nncdbg.Editor(nncdbg.parse(text))
    main = edit.graph()
    loop = main[0]
    inside, after = edit.carry(loop, edit.value("x"), "total")
    body = loop.blocks[0]
    body.set_operand(1, body.insert("Add", inside, edit.value("b")))
    main.add_result(after)
    got = run(edit.program())
    np.testing.assert_allclose(got["total.1"], X * (1 + 0.5 + 0.25 + 0.125), rtol=1e-6)
    np.testing.assert_allclose(got["each"], X[None] * np.array([0.5, 0.25, 0.125])[:, None, None], rtol=1e-6)


def change(edit: nncdbg.Editor, name: str) -> None:
    loss, train = edit.graph("loss"), edit.graph("train")
    changes: dict[str, Any] = {
        "no operand": lambda: loss.add_input("k", "f32[]"),
        "no type": lambda: loss.add_input("k", "f31[]", 1.0),
        "run line": lambda: train.add_input("k", "f32[]"),
        "run input": lambda: train.remove_input(train.inputs[0]),
        "no input": lambda: loss.remove_input(train.inputs[0]),
        "no result": lambda: loss.remove_result(edit.value("q", "loss")),
        "unknown type": lambda: loss.add_result(loss.insert("test.Unknown", loss.inputs[0])),
        "no loop": lambda: edit.carry(loss[0], 1.0),
    }
    changes[name]()


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("no operand", GraphError, "has no operand for %k"),
        ("no type", GraphError, "'f31"),
        ("run line", UsageError, "a `run` line gives the inputs of @train"),
        ("run input", UsageError, "a `run` line gives the inputs of @train"),
        ("no input", UsageError, "is no input of @loss"),
        ("no result", UsageError, "is no result of @loss"),
        ("unknown type", GraphError, "the type of %unknown is not known, and @loss has a gradient"),
        ("no loop", GraphError, "carries no values"),
    ],
)
def test_faults_change_nothing(name: str, error: type[NncdbgError], message: str) -> None:
    edit = nncdbg.Editor(nncdbg.parse(TRAINING))
    with pytest.raises(error) as caught:
        change(edit, name)
    assert message in str(caught.value)
    if name == "unknown type":
        loss = edit.graph("loss")
        loss[len(loss) - 1].delete()
    np.testing.assert_array_equal(run(edit.program())["l"], run(nncdbg.parse(TRAINING))["l"])


def test_an_input_that_a_backward_line_names_stays() -> None:
    text = TRAINING.replace("by (%w)", "by (%w, %x)").replace("%d_w: f32[3,1] = @", "%d_w: f32[3,1], _ = @")
    edit = nncdbg.Editor(nncdbg.parse(text))
    loss = edit.graph("loss")
    product = edit.value("y", "loss").statement
    assert product is not None
    product.replace("MatMul", loss.constant("ones", np.ones((2, 3), np.float32)), product.operands[1])
    with pytest.raises(GraphError, match="@loss.backward is the gradient by %x"):
        loss.remove_input(loss.inputs[0])
