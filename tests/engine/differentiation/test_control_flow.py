"""Gradients of branches and loops: equal to finite differences, by `Gradient` and by ``backward`` lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nncdbg
from nncdbg.engine.differentiation.expansion import with_backward_graphs
from nncdbg.errors import GraphError
from nncdbg.textual_repr.parser import parse
from tests.engine.differentiation.gradients import check, differences, gradients, program_of, run

INPUTS = {"x": np.array([0.3, -0.7, 1.2]), "w": np.array([0.5, 1.1, 0.4])}


def table() -> dict[str, list[str]]:
    """The programs of the table by name."""
    text = Path(__file__).with_name("control_flow.txt").read_text(encoding="utf-8")
    parts = [part.splitlines() for part in text.split("== ")[1:]]
    return {name: [line for line in lines if line] for name, *lines in parts}


PROGRAMS = table()


@pytest.mark.parametrize("typed", [True, False], ids=["known sizes", "unknown sizes"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_gradient_graph_equals_finite_differences(name: str, typed: bool) -> None:
    graph = check(PROGRAMS[name], INPUTS, ["x", "w"], typed=typed)
    assert "nncdbg.NoGradientRule" not in {node.op for node in graph.nodes}


def trained(lines: list[str], sizes: str = "[3]") -> str:
    """A program that returns the loss of these lines, and its gradients by a ``backward`` line."""
    body = "".join(f"  {line}\n" for line in lines)
    return f"""opset 21

graph @main(%x: f64{sizes}, %w: f64{sizes}) -> (%l, %d_x, %d_w) {{
  %l, saved %s = @f(%x, %w)
  %d_x, %d_w = @f.backward(1.0, %s)
  return %l, %d_x, %d_w
}}

graph @f(%x: f64{sizes}, %w: f64{sizes}) -> (%loss: f64[]) {{
{body}  return %loss
}}

backward @f.backward of @f by (%x, %w)
"""


@pytest.mark.parametrize("sizes", ["[3]", "[N]", "[...]"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_backward_line_equals_finite_differences(name: str, sizes: str) -> None:
    lines = PROGRAMS[name]
    program = parse(trained(lines, sizes))
    backward = with_backward_graphs(program).graphs["f.backward"]
    alone = replace(program, graphs={"f.backward": backward}, entry="f.backward", backwards=(), source=None)
    assert parse(str(alone)).graphs == alone.graphs
    got = run(program, INPUTS)
    plain = program_of(lines, INPUTS)

    def loss(inputs: Any) -> float:
        return float(run(plain, inputs)["loss"])

    assert got["l"] == loss(INPUTS)
    for x in ("x", "w"):
        np.testing.assert_allclose(got[f"d_{x}"], differences(loss, x, INPUTS), rtol=1e-6, atol=1e-7)


def backward_graph(text: str, name: str = "f.backward") -> str:
    """The text of the graph of a ``backward`` line, from its statements on."""
    graph = with_backward_graphs(parse(text)).graphs[name]
    printed = str(
        replace(parse(text), graphs={name: graph}, entry=name, backwards=(), source=None, states=())
    )
    return printed[printed.index("graph @") :]


def golden(name: str) -> str:
    return (Path(__file__).parent / "golden" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["branch", "loop"])
def test_the_text_of_a_backward_graph(name: str) -> None:
    """`golden/NAME.nnc` is a program, and `golden/NAME.backward.nnc` the graph of its ``backward`` line."""
    assert backward_graph(golden(f"{name}.nnc")) == golden(f"{name}.backward.nnc")


POWER = """opset 21

graph @main(%x: f64[], %w: f64[]) -> (%l, %d_x, %d_w) {
  %l, saved %s = @power(%x, %w)
  %d_x, %d_w = @power.backward(0.34, %s)
  return %l, %d_x, %d_w
}

graph @power(%x: f64[], %w: f64[]) -> (%y: f64[]) {
  while (%k: i64[] = 0, %p: f64[] = %x) {
    %more = Less(%k, 5)
    break unless %more
    %k.1 = Add(%k, 1)
    %p.1 = Mul(%p, %w)
    next %k = %k.1, %p = %p.1
  } -> (%y: f64[] = %p)
  return %y
}

backward @power.backward of @power by (%x, %w)
"""


def test_the_gradient_of_a_power_by_a_loop() -> None:
    """R5: the gradient of 0.34 * 1.11^5 by a loop."""
    got = run(parse(POWER), {"x": np.array(0.34), "w": np.array(1.11)})
    assert got["l"] == pytest.approx(0.34 * 1.11**5, rel=1e-15)
    assert got["d_x"] == pytest.approx(0.34 * 1.11**5, rel=1e-15)
    assert got["d_w"] == pytest.approx(0.34 * 0.34 * 5 * 1.11**4, rel=1e-15)


CASES = """opset 21

graph @main(%x: f64[], %k: i64[]) -> (%l, %d_x) {
  %l, saved %s = @choose(%x, %k)
  %d_x = @choose.backward(1.0, %s)
  return %l, %d_x
}

graph @choose(%x: f64[], %k: i64[]) -> (%y: f64[]) {
  %first = Equal(%k, 0)
  if %first {
    %a = @square(%x)
    yield %a
  } else {
    %second = Equal(%k, 1)
    if %second {
      %b = Exp(%x)
      yield %b
    } else {
      %c: f64[] = 3.0
      yield %c
    } -> (%d)
    yield %d
  } -> (%y)
  return %y
}

graph @square(%x: f64[]) -> (%y: f64[]) {
  %y: f64[] = Mul(%x, %x)
  return %y
}

backward @choose.backward of @choose by (%x)
"""


@pytest.mark.parametrize(("case", "slope"), [(0, 4.0), (1, np.exp(2.0)), (2, 0.0)])
def test_the_gradient_of_cases(case: int, slope: float) -> None:
    """R5: the gradient of a choice between three cases."""
    assert run(parse(CASES), {"x": np.array(2.0), "k": case})["d_x"] == pytest.approx(slope, rel=1e-15)


STATES = """opset 21
state %w: f64[3] = [0.5, 1.1, 0.4]
state %last: f64[3] = zeros for %w

graph @main(%x: f64[3]) -> (%l, %d_w) {
  %l, saved %s = @loss(%x)
  %d_w = @loss.backward(1.0, %s)
  return %l, %d_w
}

graph @loss(%x: f64[3]) -> (%l: f64[]) {
  while @layers (%h = %x) times 3 {
    %h.1 = @layer(%h)
    next %h = %h.1
  } -> (%y = %h)
  %l: f64[] = ReduceSum(%y, keepdims=0)
  return %l
}

graph @layer(%h: f64[3]) -> (%y: f64[3]) {
  %p = Mul(%h, %w)
  %y: f64[3] = Tanh(%p)
  return %y
}

backward @loss.backward of @loss by (%w)
"""


def test_a_state_that_a_call_in_a_loop_reads() -> None:
    got = run(parse(STATES), {"x": INPUTS["x"]})

    def loss(inputs: Any) -> float:
        h = INPUTS["x"]
        for _ in range(3):
            h = np.tanh(h * inputs["w"])
        return float(h.sum())

    wanted = differences(loss, "w", INPUTS)
    np.testing.assert_allclose(got["d_w"], wanted, rtol=1e-7)


def test_the_frames_of_a_backward_loop_have_the_names_and_lines_of_the_forward_loop() -> None:
    debugger = nncdbg.Debugger(parse(STATES), {"x": INPUTS["x"]})
    debugger.break_at(graph="layer.backward")
    assert debugger.run().reason == "breakpoint"
    names = [frame.code.graph.name for frame in debugger.frames]
    assert names == ["layer.backward", "layers.backward", "loss.backward", "main", "program"]
    comments = [node.comment for node in debugger.frames[1].code.graph.nodes]
    line = STATES.splitlines().index("    %h.1 = @layer(%h)") + 1
    assert [each for each in comments if each] == [f"of line {line}"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("%p = Mul(%h, %w)", "%n = RandomNormalLike(%h)\n  %p = Mul(%n, %w)", "cannot be drawn again"),
        ("%y: f64[3] = Tanh(%p)", "%y: f64[3] = Tanh(%p)\n  update %last = %p", "@layer updates a state"),
        ("%y: f64[3] = Tanh(%p)", "%y: f64[3] = test.Unknown(%p)", "test.Unknown"),
    ],
)
def test_a_loop_without_a_gradient_is_an_error_before_the_run(old: str, new: str, message: str) -> None:
    with pytest.raises(GraphError, match="cannot go back through") as caught:
        nncdbg.Debugger(parse(STATES.replace(old, new)), {"x": INPUTS["x"]})
    assert message in str(caught.value)
    assert caught.value.excerpt is not None
    assert caught.value.hint


def test_a_loop_that_updates_a_state_has_the_same_gradient() -> None:
    updating = STATES.replace("%h.1 = @layer(%h)", "%h.1 = @layer(%h)\n    update %last = %h.1")
    debuggers = [nncdbg.Debugger(parse(text), {"x": INPUTS["x"]}) for text in (STATES, updating)]
    plain, changed = debuggers
    for debugger in debuggers:
        assert debugger.run().reason == "end"
    assert plain.outputs is not None
    assert changed.outputs is not None
    np.testing.assert_array_equal(plain.outputs["d_w"], changed.outputs["d_w"])
    assert not np.array_equal(plain.states["last"], changed.states["last"])


STEPS = {
    "Sin": "Sin(%{s})",
    "Mul": "Mul(%{s}, %w)",
    "Add": "Add(%{s}, %x)",
    "square": "Mul(%{s}, %{s})",
    "Tanh": "Tanh(%{s})",
    "constant": "Mul(%{s}, 0.5)",
}


def chain(ops: Sequence[str], first: str, suffix: str) -> tuple[list[str], str]:
    """Lines that apply the ops one after the other to ``%first``, and the name of the last result."""
    lines, value = [], first
    for number, name in enumerate(ops):
        result = f"v{number}{suffix}"
        lines.append(f"%{result} = {STEPS[name].format(s=value)}")
        value = result
    return lines, value


@given(
    ops=st.lists(st.sampled_from([*STEPS]), min_size=1, max_size=5),
    times=st.integers(0, 4),
    conditional=st.booleans(),
)
def test_the_gradient_of_a_loop_is_that_of_its_unrolled_statements(
    ops: list[str], times: int, conditional: bool
) -> None:
    lines, last = chain(ops, "s", "")
    head = [f"%n: i64[] = {times}", f"while (%k: i64[] = 0, %s = %x) {'' if conditional else 'times %n '}{{"]
    leave = ["%go = Less(%k, %n)", "break unless %go"] if conditional else []
    body = [*leave, *lines, "%k.1 = Add(%k, 1)", f"next %k = %k.1, %s = %{last}"]
    end = ["%loss = ReduceSum(%y, keepdims=0)"]
    loop = program_of([*head, *(f"  {line}" for line in body), "} -> (%y = %s)", *end], INPUTS)
    unrolled, value = [], "x"
    for number in range(times):
        statements, value = chain(ops, value, f".{number}")
        unrolled += statements
    flat = program_of([*unrolled, f"%y = Identity(%{value})", *end], INPUTS)
    for got, wanted in zip(gradients(loop, "xw", INPUTS), gradients(flat, "xw", INPUTS), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-14)
