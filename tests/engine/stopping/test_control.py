"""Control of a run: commands, supervision, interrupted steps, moves that ignore breakpoints."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.stopping.stops import Stop
from nncdbg.engine.stopping.supervision import Supervision
from tests.engine.time.test_visits import debugger_of, here, on

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


def test_every_command_calls_the_supervisor() -> None:
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


def test_proceed_completes_an_interrupted_step(debugger: Debugger) -> None:
    debugger.step_over()
    debugger.break_at(line=11)
    assert debugger.step_over().reason == "breakpoint"
    journey = debugger.control.journey
    assert journey is not None
    assert debugger.step_into().line == 12
    stop = debugger.move(debugger.control.proceed, journey)
    assert (stop.reason, stop.line) == ("step", 6)
    assert debugger.control.journey is None


def test_proceed_at_the_destination_executes_nothing(debugger: Debugger) -> None:
    debugger.step_over()
    debugger.break_at(line=11)
    debugger.step_over()
    journey = debugger.control.journey
    assert journey is not None
    debugger.step_out()
    tick = debugger.control.machine.tick
    assert debugger.move(debugger.control.proceed, journey).line == 6
    assert debugger.control.machine.tick == tick


def test_stop_here_reports_a_breakpoint_at_the_first_statement(debugger: Debugger) -> None:
    mine, other = debugger.break_at(line=4), debugger.break_at(line=4)
    stop = debugger.control.stop_here({mine.number})
    assert stop is not None
    assert stop.breakpoints == (mine.number,)
    assert (mine.count, other.count) == (1, 0)
    assert debugger.control.stop_here(set()) is None
    assert debugger.control.machine.tick == 0


def test_run_without_heed_ignores_breakpoints_and_findings(debugger: Debugger) -> None:
    debugger.break_at(line=11)
    debugger.catch("nan")
    assert debugger.run(heed=False).reason == "end"
    debugger.restart()
    assert debugger.run().reason == "breakpoint"
    assert debugger.run().reason == "exception"


def test_catch_only_replaces_all_catches(debugger: Debugger) -> None:
    before = debugger.observers.catches.conditions
    debugger.observers.catch_only({"nan": None})
    assert debugger.run().reason == "exception"
    debugger.restart()
    debugger.observers.catch_only(before)
    assert debugger.run().reason == "end"


def test_move_to_ignores_breakpoints_and_findings() -> None:
    debugger = debugger_of("nan_softmax.nnc")
    debugger.catch("nan")
    stop = debugger.run()
    assert stop.reason == "exception"
    last = len(debugger.control.machine.frames[0].code.nodes)
    debugger.restart()
    for line in range(1, len(debugger.loaded.listing.lines)):
        site = debugger.loaded.listing.site(line)
        if site is not None and site.path == ("main",):
            debugger.break_at(line=line)
    stop = debugger.move(debugger.control.move_to, on(("main",)), last)
    assert (stop.reason, here(debugger)) == ("goto", (("main",), last))
    assert len(debugger.breakpoints) > 1
    assert all(found.count == 0 for found in debugger.breakpoints)
    debugger.restart()
    assert debugger.run().reason == "breakpoint"  # Breakpoints are active again.


def test_move_to_an_unreachable_statement_leaves_the_program_unmoved() -> None:
    debugger = debugger_of("first_steps.nnc")
    debugger.step_over()
    before = debugger.control.machine.tick, here(debugger), debugger.value("%h").tobytes()
    with pytest.raises(nncdbg.NncdbgError, match="ends before it reaches this statement"):
        debugger.move(debugger.control.move_to, on(("layer",)), 0)
    assert (debugger.control.machine.tick, here(debugger), debugger.value("%h").tobytes()) == before
    assert debugger.run().reason == "end"


def test_run_to_reaches_a_graph_that_is_compiled_on_the_way() -> None:
    debugger = debugger_of("first_steps.nnc")
    stop = debugger.run_to(line=35)
    assert (stop.reason, stop.line) == ("goto", 35)


def test_actions_between_statements_run_during_a_replay() -> None:
    debugger = debugger_of("refine_loop.nnc", allocator="arena")
    debugger.run()
    done: list[int] = []
    debugger.control.between_statements(lambda: done.append(debugger.control.machine.tick))
    debugger.reverse_continue()
    assert len(done) == 1
    assert done[0] > 0


def test_a_forgotten_pause_does_not_stop_the_run() -> None:
    debugger = debugger_of("refine_loop.nnc")
    debugger.step_over()
    debugger.pause()
    debugger.control.forget_pause()
    assert debugger.run().reason == "end"
