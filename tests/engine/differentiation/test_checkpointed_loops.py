"""``checkpoints`` of ``backward`` lines: the same bits, fewer values in memory, iterations computed again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nncdbg
from nncdbg.engine.differentiation.expansion import with_backward_graphs
from nncdbg.engine.ops.cotangent import recomputations
from nncdbg.engine.time.checkpoints import held_by
from nncdbg.textual_repr.parser import parse
from tests.engine.differentiation.gradients import run
from tests.engine.differentiation.test_control_flow import (
    INPUTS,
    PROGRAMS,
    STATES,
    backward_graph,
    golden,
    trained,
)
from tests.laws import examples


def checkpointed(text: str, checkpoints: int) -> str:
    """The text with `checkpoints` on its ``backward`` line."""
    return "".join(
        f"{line} checkpoints {checkpoints}\n" if line.startswith("backward") else f"{line}\n"
        for line in text.splitlines()
    )


def same_bits(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return found.keys() == wanted.keys() and all(
        (found[name].shape, found[name].tobytes()) == (wanted[name].shape, wanted[name].tobytes())
        for name in wanted
    )


DAILY = {("[3]", 2), ("[...]", 1), ("[N]", 20)}
"""The sizes and checkpoints with which each loop runs daily; a quarter of the others does."""

CASES = [
    pytest.param(name, sizes, checkpoints, marks=() if (sizes, checkpoints) in DAILY else pytest.mark.nightly)
    for name in PROGRAMS
    for sizes in ("[3]", "[N]", "[...]")
    for checkpoints in (1, 2, 3, 20)
]


@pytest.mark.parametrize(("name", "sizes", "checkpoints"), CASES)
def test_the_gradients_have_the_same_bits(name: str, sizes: str, checkpoints: int) -> None:
    """D12: every loop of the table, with nested loops, branches, breaks and sizes that change."""
    text = trained(PROGRAMS[name], sizes)
    program = parse(checkpointed(text, checkpoints))
    assert parse(str(program)) == program
    assert same_bits(run(program, INPUTS), run(parse(text), INPUTS))


def test_the_text_of_the_backward_graph() -> None:
    """The expanded graph is program text, which `golden/checkpoints.backward.nnc` shows."""
    text = checkpointed(golden("loop.nnc"), 3)
    found = backward_graph(text)
    assert found == golden("checkpoints.backward.nnc")
    assert str(parse(found)).endswith(found)


@pytest.mark.parametrize("checkpoints", [1, 2])
def test_a_loop_of_calls_that_read_a_state(checkpoints: int) -> None:
    text = checkpointed(STATES, checkpoints)
    assert same_bits(run(parse(text), {"x": INPUTS["x"]}), run(parse(STATES), {"x": INPUTS["x"]}))


COUNTED = """opset 21

graph @main(%x: f64[2], %n: i64[]) -> (%l: f64[], %d_x: f64[2]) {
  %l: f64[], saved %s = @f(%x, %n)
  %d_x: f64[2] = @f.backward(1.0, %s)
  return %l, %d_x
}

graph @f(%x: f64[2], %n: i64[]) -> (%l: f64[]) {
  while @grow (%k: i64[] = 0, %h: f64[2] = %x) {
    %more = Less(%k, %n)
    break unless %more
    %k.1 = Add(%k, 1)
    %h.1 = Tanh(%h)
    next %k = %k.1, %h = %h.1
  } -> (%y = %h)
  %l: f64[] = ReduceSum(%y, keepdims=0)
  return %l
}

backward @f.backward of @f by (%x)
"""
"""A loop whose number of iterations is only known at run time, with one Tanh per iteration."""


def executed(text: str, count: int) -> int:
    """The number of Tanh statements that a run executes."""
    debugger = nncdbg.Debugger(parse(text), {"x": np.array([0.5, 1.0]), "n": count}, statistics=False)
    bp = debugger.break_at(op="Tanh", log=".")
    assert debugger.run().reason == "end"
    return len(bp.passes)


@examples(15)
@given(count=st.integers(1, 25), checkpoints=st.integers(1, 5))
def test_the_number_of_recomputed_iterations(count: int, checkpoints: int) -> None:
    """D12: n iterations forward, t(n, s) again from checkpoints, and n that are reversed."""
    assert executed(checkpointed(COUNTED, checkpoints), count) == 2 * count + recomputations(
        count, checkpoints
    )
    assert executed(COUNTED, count) == 2 * count


def test_no_iterations() -> None:
    got = run(parse(checkpointed(COUNTED, 2)), {"x": np.array([0.5, 1.0]), "n": 0})
    np.testing.assert_array_equal(got["d_x"], [1, 1])


def arrays(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield from arrays(value)
        elif isinstance(value, np.ndarray):
            yield value


def most_values(text: str, count: int, size: int) -> float:
    """The most bytes that the frames hold at a Tanh, as a number of values of the loop."""
    program = parse(text.replace("f64[2]", f"f64[{size}]"))
    inputs = {"x": np.linspace(0, 1, size), "n": count}
    debugger = nncdbg.Debugger(program, inputs, statistics=False, allocator="plain")
    debugger.break_at(op="Tanh")
    most = 0
    while debugger.run().reason == "breakpoint":
        held = {id(each): each.nbytes for each in arrays(held_by([debugger.timeline.machine], ()))}
        most = max(most, sum(held.values()))
    return most / (8 * size)


def test_the_memory_of_a_long_loop_does_not_grow_with_its_iterations() -> None:
    """D12: the bytes that the program holds grow with the checkpoints, not with the iterations."""
    assert most_values(COUNTED, 100, 1000) > 100
    few = [most_values(checkpointed(COUNTED, checkpoints), 100, 1000) for checkpoints in (4, 8)]
    assert few[0] < 4 + 12
    assert few[1] - few[0] == pytest.approx(4, abs=0.1)
    assert most_values(checkpointed(COUNTED, 4), 200, 1000) == pytest.approx(few[0], abs=0.1)


def test_the_checkpoints_can_be_inspected_and_stepped_back_over() -> None:
    text = checkpointed(COUNTED, 3)
    debugger = nncdbg.Debugger(parse(text), {"x": np.array([0.5, 1.0]), "n": 10})
    debugger.break_at(graph="grow.again")
    assert debugger.run().reason == "breakpoint"
    names = [frame.code.graph.name for frame in debugger.frames]
    assert names[:3] == ["grow.again", "grow.backward", "f.backward"]
    before = debugger.timeline.tick
    debugger.step_over()
    debugger.step_back()
    assert debugger.timeline.tick == before
    debugger.delete()
    assert debugger.run().reason == "end"


def test_backward_lines_name_their_forward_lines_with_checkpoints_too() -> None:
    graph = with_backward_graphs(parse(checkpointed(COUNTED, 3))).graphs["f.backward"]
    loop = next(node for node in graph.nodes if node.op == "while")
    comments = [node.comment for node in loop.subgraphs[0].nodes if node.comment]
    line = next(n for n, text in enumerate(COUNTED.splitlines(), 1) if "Tanh" in text)
    assert comments == ["from the latest checkpoint", f"of line {line}"]
