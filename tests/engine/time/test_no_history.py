"""A run without history: each value is dropped after its last use, and computed again where it is read."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.compilation.code import EVICTED, UNSET
from nncdbg.engine.execution.linking import Binding
from tests.presence import present

CHAIN = """
graph @main(%x: f32[4]) -> (%e: f32[4]) {
  %a = Exp(%x)
  %b = Neg(%a)
  %c = @inner(%b)
  %d = Abs(%c)
  %e = Add(%d, %x)
  return %e
}

graph @inner(%p: f32[4]) -> (%r: f32[4]) {
  %q = Mul(%p, 0.5)
  %s = Sqrt(%q)
  %t = Abs(%q)
  %r = Neg(%t)
  return %r
}
"""
"""Nothing reads @inner.%s."""

X = np.array([0, 1, 2, 3], np.float32)


def opened(**options: Any) -> nncdbg.Debugger:
    return nncdbg.Debugger(nncdbg.parse(CHAIN), {"x": X}, **{"history": 0, "statistics": False, **options})


def held(debugger: nncdbg.Debugger) -> dict[str, Any]:
    """Return the contents of the slots of the innermost frame, by name."""
    frame = debugger.control.machine.frames[-1]
    return dict(zip(frame.code.names, frame.slots, strict=True))


@pytest.mark.parametrize("allocator", ["plain", "debug"])
def test_a_run_holds_no_value_after_its_last_use(allocator: str) -> None:
    debugger = opened(allocator=allocator)
    debugger.break_at(value="%e")
    assert debugger.run().reason == "breakpoint"
    now = held(debugger)
    assert now["a"] is EVICTED
    assert now["b"] is EVICTED
    # The operands of the statement that ran last are still there.
    assert isinstance(now["c"], np.ndarray)
    assert isinstance(now["d"], np.ndarray)
    assert now["e"] is UNSET


def test_the_memory_of_a_dropped_value_is_free_while_the_run_goes_on() -> None:
    living: list[int] = []
    made: list[weakref.ref[Any]] = []
    debugger = opened(allocator="plain")

    def following(_: Binding, execute: Any) -> Any:
        def run(*operands: Any) -> Any:
            living.append(sum(each() is not None for each in made))
            result = execute(*operands)
            made.append(weakref.ref(result))
            return result

        return run

    debugger.observers.measure(following)
    assert debugger.run().reason == "end"
    # Exp and Neg; Mul, Sqrt, Abs and Neg of @inner, where %a, %b and an operand are left; Abs and Add, with
    # the one operand that a statement has made.
    assert living == [0, 1, 2, 3, 3, 3, 1, 1]


def test_dropped_values_are_computed_again_where_they_are_read() -> None:
    debugger, whole = opened(), opened(history=None)
    for each in (debugger, whole):
        each.break_at(value="%e")
        each.run()
    for name in ("%a", "%b", "%c", "%d"):
        np.testing.assert_array_equal(debugger.evaluate(name), whole.evaluate(name))


def test_steps_back_pass_the_same_states_as_with_history() -> None:
    debugger, whole = opened(), opened(history=None)
    for each in (debugger, whole):
        each.run()
        assert each.stop.reason == "end"
    compared: set[str] = set()
    while whole.timeline.tick:
        assert debugger.timeline.tick == whole.timeline.tick
        assert debugger.stop.line == whole.stop.line
        for name, value in held(whole).items():
            mine = held(debugger)[name]
            if isinstance(mine, np.ndarray):
                np.testing.assert_array_equal(mine, value)
                compared.add(name)
        debugger.step_back_into()
        whole.step_back_into()
    assert debugger.timeline.tick == 0
    assert compared >= set("abcdeqtr")


def test_single_steps_keep_the_operands_of_the_last_statement_only() -> None:
    debugger = opened()
    for _ in range(5):
        debugger.step_into()
    now = held(debugger)
    assert debugger.stop.node is not None
    assert debugger.stop.node.op == "Abs"
    assert isinstance(now["q"], np.ndarray)
    debugger.step_into()
    debugger.step_into()
    now = held(debugger)
    assert now["s"] is EVICTED
    assert now["q"] is EVICTED
    assert isinstance(now["t"], np.ndarray)
    np.testing.assert_array_equal(debugger.evaluate("%q"), np.exp(X) * np.float32(-0.5))


def test_the_journal_holds_no_frames_of_the_past() -> None:
    debugger = opened()
    debugger.run()
    assert len(debugger.control.machine.undo_log) == 1


def test_loops_and_branches_have_the_same_results() -> None:
    text = """
graph @main(%n: i64[], %x: f32[3]) -> (%y: f32[3], %all: f32[N, 3]) {
  %twice = Add(%x, %x)
  while @body (%carried: f32[3] = %x) count %i: i64[] times %n {
    %big = ReduceMax(%carried, keepdims=0)
    %small = Less(%big, 100.0)
    if %small {
      %m = Mul(%carried, %twice)
      %k = Add(%m, 1.0)
      yield %k
    } else {
      %root = Sqrt(%carried)
      yield %root
    } -> (%next: f32[3])
    next %carried = %next collect %next
  } -> (%y: f32[3] = %carried, %all: f32[N, 3] = collect[0])
  return %y, %all
}
"""
    inputs = {"n": 7, "x": np.array([1, 2, 3], np.float32)}
    without = nncdbg.Debugger(nncdbg.parse(text), inputs, history=0)
    whole = nncdbg.Debugger(nncdbg.parse(text), inputs)
    for each in (without, whole):
        assert each.run().reason == "end"
    for name, value in present(whole.outputs).items():
        assert present(without.outputs)[name].tobytes() == value.tobytes()


def test_a_debugger_with_history_may_follow_on_the_same_compiled_program() -> None:
    first = opened()
    first.run()
    second = opened(history=None, compiled=first.loaded.release())
    second.run()
    second.step_back()
    assert isinstance(held(second)["a"], np.ndarray)
