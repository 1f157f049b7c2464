"""A value that was set keeps its value when one of its dependencies is set."""

from __future__ import annotations

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.values.editing import late_decisions
from tests.presence import present

TEXT = """graph @main(%x: f32[2]) -> (%y: f32[2]) {
  %h: f32[2] = Add(%x, 1.0)
  while @body (%s: f32[2] = %h) times 3 {
    %a: f32[2] = Add(%s, 1.0)
    %b: f32[2] = Identity(%a)
    %c: f32[2] = Add(%b, %x)
    next %s = %c
  } -> (%y: f32[2] = %s)
  return %y
}
"""


@pytest.fixture(params=[{}, {"history": 0}, {"allocator": "debug"}, {"allocator": "plain"}], ids=str)
def debugger(request: pytest.FixtureRequest) -> nncdbg.Debugger:
    """A debugger at the end of the first iteration."""
    found = nncdbg.Debugger(nncdbg.parse(TEXT), {"x": [1, 2]}, **request.param)
    found.run_to(line=7)
    return found


def seen(debugger: nncdbg.Debugger, names: str) -> dict[str, float]:
    return {name: float(debugger.value(name)[0]) for name in names}


def test_an_edit_of_an_operand_keeps_the_edited_result(debugger: nncdbg.Debugger) -> None:
    debugger.set_value("a", 10)
    debugger.set_value("x", 5)
    assert seen(debugger, "xhsabc") == {"x": 5, "h": 6, "s": 6, "a": 10, "b": 10, "c": 15}
    assert late_decisions(debugger.values) == ["%a depends on %x, and keeps the value that was set"]
    debugger.set_value("a", 20)
    assert seen(debugger, "abc") == {"a": 20, "b": 20, "c": 25}
    assert late_decisions(debugger.values) == []


def test_an_edited_carried_value_is_kept(debugger: nncdbg.Debugger) -> None:
    debugger.set_value("s", 3)
    debugger.set_value("h", 50)
    assert seen(debugger, "hsab") == {"h": 50, "s": 3, "a": 4, "b": 4}


def test_the_next_iteration_computes_the_value(debugger: nncdbg.Debugger) -> None:
    debugger.set_value("a", 10)
    debugger.run_to(line=7)
    debugger.set_value("s", 7)
    assert seen(debugger, "ab") == {"a": 8, "b": 8}


def test_both_edits_persist_after_a_restart(debugger: nncdbg.Debugger) -> None:
    debugger.set_value("a", 10)
    debugger.set_value("x", 5)
    debugger.run()
    outputs = present(debugger.outputs)["y"]
    debugger.restart()
    debugger.run()
    np.testing.assert_array_equal(present(debugger.outputs)["y"], outputs)
    # The first iteration gives 10 + 5, the others add 1 + 5 each.
    assert outputs.tolist() == [27, 27]


def test_an_edit_at_an_earlier_tick_recomputes_all(debugger: nncdbg.Debugger) -> None:
    debugger.set_value("a", 10)
    debugger.go_to(2)
    debugger.set_value("x", 5)
    debugger.run_to(line=7)
    assert seen(debugger, "sab") == {"s": 6, "a": 7, "b": 7}
