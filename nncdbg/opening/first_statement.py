"""The first statement that differs between two runs in journals, by running both again from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nncdbg.engine.comparison.tolerance import Tolerance
from nncdbg.engine.divergence.casting import has_same_places
from nncdbg.engine.divergence.lockstep import FirstDifference, Lockstep
from nncdbg.engine.errors import UsageError
from nncdbg.engine.time.step_starts import line_at, lines_of
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.journal_address import Address
from nncdbg.opening.programs import OpenedProgram, open_program

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger
    from nncdbg.opening.run_comparison import ComparedRun, RunComparison

EXACT = Tolerance(rtol=0, atol=0)
"""No tolerance: two results differ if a bit does, except for the sign of 0 and the bits of NaN."""


@dataclass(frozen=True, slots=True, eq=False)
class FirstStatement:
    """The first result that differs, in step `step`; None for a statement between two trainings."""

    step: int | None
    difference: FirstDifference


@dataclass(frozen=True, slots=True, eq=False)
class Rerun:
    """Both runs again, from the equal checkpoint at step `start` to the end of step `last`."""

    lockstep: Lockstep
    start: int
    last: int

    def first(self) -> FirstStatement | None:
        """Run both sides to the first statement with different results; None if no result differs.

        Raises the error of a failed side, and KeyboardInterrupt after a pause.
        """
        debugger = self.lockstep.a.debugger
        difference = self.lockstep.run_to_difference(_until_end_of(debugger, self.last))
        if difference is None:
            return None
        return FirstStatement(_step_of(debugger), difference)


def rerun(comparison: RunComparison) -> Rerun:
    """Open both runs at the last checkpoint that is equal.

    Raises UsageError if that is impossible: without such a checkpoint, for the run of a script, and for
    programs with different statements.
    """
    start, last = comparison.equal_checkpoint, comparison.first_step
    if {comparison.a.run.kind, comparison.b.run.kind} != {"graph"}:
        raise UsageError("only runs of programs can be run again, not those of scripts")
    if start is None or last is None:
        raise UsageError("the runs have no equal checkpoint before the difference")
    one, other = (_opened(side, start) for side in (comparison.a, comparison.b))
    if not has_same_places(one.program, other.program):
        raise UsageError("the programs have different statements")
    a, b = (opened.debugger(statistics=False) for opened in (one, other))
    return Rerun(Lockstep(a, b, EXACT), start, last)


def _opened(side: ComparedRun, step: int) -> OpenedProgram:
    address = Address(str(side.journal.path), side.run.number, step)
    return open_program(RunConfiguration(program=str(address)))


def _step_of(debugger: Debugger) -> int | None:
    frames = debugger.control.machine.frames
    lines = {line.body: line for line in lines_of(frames[0].code)}
    found = (lines[frame.code].step(frame.iteration) for frame in frames if frame.code in lines)
    return next(found, None)


def _until_end_of(debugger: Debugger, step: int) -> Callable[[], bool]:
    """Return a function that returns whether a step has not ended yet."""
    machine = debugger.control.machine
    line = line_at(lines_of(machine.frames[0].code), step)
    iteration = step - line.first_step

    def more() -> bool:
        frame = next((frame for frame in machine.frames if frame.code is line.body), None)
        if frame is not None:
            return frame.iteration <= iteration
        return not machine.ended and machine.frames[0].pc <= line.pc

    return more
