"""Static graphs in a dynamic one; the reverse is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nncdbg
from tests.presence import present

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)

LAYERS = """
graph @main(%x: f32[N,4]) -> (%y: f32[N,4]) {
  %w: f32[4,4] = [[1.0, 2.0, 0.0, 0.0], [0.0, 1.0, 2.0, 0.0], [0.0, 0.0, 1.0, 2.0], [3.0, 0.0, 0.0, 1.0]]
  %h: f32[N,4] = @layer(%x, %w)
  %y: f32[N,4] = Tanh(%h)
  return %y
}

graph @layer(%x: f32[N,4], %w: f32[4,4]) -> (%h: f32[N,4]) {
  %m: f32[N,4] = MatMul(%x, %w)
  %h: f32[N,4] = Relu(%m)
  return %h
}
"""

COUNTED = """
state %count: f32[] = 10.0

graph @main(%x: f32[2,4]) -> (%y: f32[2,4]) {
  %next: f32[] = Add(%count, 1.0)
  update %count = %next
  %y: f32[2,4] = Mul(%x, %count)
  return %y
}
"""


@pytest.mark.parametrize("lazy", [False, True])
def test_a_program_is_one_statement_that_a_step_enters(lazy: bool) -> None:
    """D9, D10: a static graph in a dynamic one is one statement."""
    g = nncdbg.eager(lazy=lazy)
    model = g.model(nncdbg.parse(LAYERS))
    x = g.input("x", X)
    y = model(x * 2.0)
    expected = nncdbg.run(nncdbg.parse(LAYERS), {"x": X * np.float32(2)})["y"]
    assert y.value.tobytes() == expected.tobytes()
    assert "%y = @main(%mul) : f32[2,4]" in str(g.program)
    debugger = nncdbg.Debugger(g.program)
    debugger.step_over()
    stop = debugger.step_into()
    assert present(stop.frame).code.graph.name == "main"
    debugger.step_into()
    assert [frame.code.graph.name for frame in debugger.frames] == ["layer", "main", "trace"]
    back = g.debug()
    back.step_back()
    back.step_back_into()
    assert back.frames[0].code.graph.name == "main"


@pytest.mark.parametrize("lazy", [False, True])
def test_states_of_a_program_keep_their_values_from_call_to_call(lazy: bool) -> None:
    """D10: a called program keeps its states."""
    g = nncdbg.eager(lazy=lazy)
    model = g.model(nncdbg.parse(COUNTED))
    x = g.input("x", np.ones((2, 4), np.float32))
    model(x)
    found = [model(x) for _ in range(2)]
    assert [each.value[0, 0] for each in reversed(found)] == [13, 12]
    assert [each.value[0, 0] for each in found] == [12, 13]
    # The call without a kept result has changed the state too.
    assert sum(node.op == "@main" for node in g.program.graph.nodes) == 3
    outputs = nncdbg.run(g.program)
    assert [outputs[each.name][0, 0] for each in found] == [12, 13]


def test_programs_with_equal_names_are_called_side_by_side(tmp_path: Path) -> None:
    g = nncdbg.eager()
    first, second = (g.model(nncdbg.parse(LAYERS)) for _ in range(2))
    y = second(first(X))
    g.save(tmp_path / "trace")
    assert nncdbg.run(tmp_path / "trace")["y"].tobytes() == y.value.tobytes()
    assert [*g.program.graphs] == ["trace", "main", "layer", "main.1", "layer.1"]


def test_a_gradient_goes_through_a_program() -> None:
    g = nncdbg.eager()
    model = g.model(nncdbg.parse(LAYERS))
    x = g.input("x", X, requires_grad=True)
    g.ReduceSum(model(x), keepdims=0).backward()
    base = g.ReduceSum(model(x), keepdims=0).item()
    moved = X.copy()
    moved[1, 3] += 1e-3
    step = g.ReduceSum(model(moved), keepdims=0).item() - base
    assert present(x.grad).value[1, 3] == pytest.approx(step / 1e-3, abs=2e-2)


def test_an_eager_value_in_a_static_graph_is_refused() -> None:
    """D9: a dynamic graph in a static one is an error."""
    g = nncdbg.eager()
    x = g.input("x", X)
    b = nncdbg.Builder()
    with b.graph("main"):
        with pytest.raises(
            nncdbg.GraphError, match="EagerVariable cannot be an operand of a static graph"
        ) as caught:
            b.Relu(x)
        b.returns()
    assert "b.Relu(x)" in present(caught.value.excerpt).text
    assert "eager session can call the graph" in present(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("opset 17\n" + LAYERS, "imports opset 17 for [A-Z]"),
        ("graph @main() -> (%y) {\n  %y = RandomNormal(shape=[2])\n  return %y\n}\n", "draws random numbers"),
        (COUNTED + "\nrun @main for %x batch 2\n", "`run` or `backward` lines"),
    ],
)
def test_programs_that_a_trace_cannot_repeat_are_refused(text: str, message: str) -> None:
    g = nncdbg.eager()
    with pytest.raises(nncdbg.UsageError, match=message):
        g.model(nncdbg.parse(text))


def test_a_wrong_call_is_reported_at_its_line() -> None:
    g = nncdbg.eager()
    model = g.model(nncdbg.parse(LAYERS))
    with pytest.raises(nncdbg.GraphError, match=r"@main takes f32\[N,4\] as %x, not f32\[2,3\]") as caught:
        model(g.input("x", X[:, :3]))
    assert "model(g.input" in present(caught.value.excerpt).text
    with pytest.raises(nncdbg.UsageError, match="@main has 1 inputs, not 2"):
        model(X, X)
    counted = g.model(nncdbg.parse(COUNTED))
    with g.no_grad(), pytest.raises(nncdbg.UsageError, match="updates states"):
        counted(X)
