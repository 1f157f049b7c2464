"""What somebody needs who moves the debuggers of a user's own program for him."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.stopping.control import Stop
from nncdbg.engine.stopping.supervision import Supervision

PROGRAM = """#nncdbg 1

graph @main(%x: f32[2]) -> (%y: f32[2]) {
  %a: f32[2] = Neg(%x)
  %b: f32[2] = @layer(%a)
  %y: f32[2] = Abs(%b)
  return %y
}

graph @layer(%h: f32[2]) -> (%k: f32[2]) {
  %k: f32[2] = Log(%h)
  return %k
}
"""


@pytest.fixture
def debugger() -> Debugger:
    return nncdbg.Debugger(nncdbg.parse(PROGRAM), {"x": np.ones(2, "f4")})


def test_every_verb_goes_through_the_supervisor() -> None:
    supervision = Supervision()
    debugger = nncdbg.Debugger(nncdbg.parse(PROGRAM), {"x": np.ones(2, "f4")}, supervision=supervision)
    seen = []

    def supervise(moved: Debugger, verb: Callable[[], Stop]) -> Stop:
        assert moved is debugger
        seen.append(verb().reason)
        return debugger.control.here("pause")

    supervision.supervisor = supervise
    for verb in (
        debugger.step_over,
        debugger.step_into,
        debugger.step_out,
        debugger.step_back,
        debugger.restart,
    ):
        assert verb().reason == "pause"
    assert debugger.run_to(line=6).reason == "pause"
    assert debugger.run().reason == "pause"
    assert seen == ["step", "step", "step", "step", "entry", "goto", "end"]
    assert debugger.stop.reason == "pause"


def test_a_step_that_was_broken_off_comes_to_its_end(debugger: Debugger) -> None:
    debugger.step_over()
    debugger.break_at(line=11)
    assert debugger.step_over().reason == "breakpoint"
    journey = debugger.control.journey
    assert journey is not None
    assert debugger.step_into().line == 12
    stop = debugger.move(debugger.control.proceed, journey)
    assert (stop.reason, stop.line) == ("step", 6)
    assert debugger.control.journey is None


def test_one_who_is_there_already_has_arrived(debugger: Debugger) -> None:
    debugger.step_over()
    debugger.break_at(line=11)
    debugger.step_over()
    journey = debugger.control.journey
    assert journey is not None
    debugger.step_out()
    tick = debugger.machine.tick
    assert debugger.move(debugger.control.proceed, journey).line == 6
    assert debugger.machine.tick == tick


def test_a_breakpoint_at_the_first_statement(debugger: Debugger) -> None:
    mine, other = debugger.break_at(line=4), debugger.break_at(line=4)
    stop = debugger.stop_here({mine.number})
    assert stop is not None
    assert stop.breakpoints == (mine.number,)
    assert (mine.count, other.count) == (1, 0)
    assert debugger.stop_here(set()) is None
    assert debugger.machine.tick == 0


def test_a_run_that_heeds_nothing(debugger: Debugger) -> None:
    debugger.break_at(line=11)
    debugger.catch("nan")
    assert debugger.run(heed=False).reason == "end"
    debugger.restart()
    assert debugger.run().reason == "breakpoint"
    assert debugger.run().reason == "exception"


def test_catching_exactly_these(debugger: Debugger) -> None:
    before = debugger.observers.catches.conditions
    debugger.observers.catch_only({"nan": None})
    assert debugger.run().reason == "exception"
    debugger.restart()
    debugger.observers.catch_only(before)
    assert debugger.run().reason == "end"
