"""Verification of an opened program: observers change nothing, and a second run has the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nncdbg.comparison.report import DiffReport
from nncdbg.comparison.verification import DeterminismVerification, Verification
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence import verification
from nncdbg.engine.divergence.lockstep import Lockstep
from nncdbg.engine.execution.linking import Allocation
from nncdbg.engine.stopping.stops import Stop
from nncdbg.opening.progress import Around, RunningProgram

if TYPE_CHECKING:
    from nncdbg.opening.programs import OpenedProgram


def verify_observers(opened: OpenedProgram, around: Around) -> Verification:
    """Compare the outputs with and without observers; `around` shows each run.

    Raises the error of the run without observers, and RunError if only a run with observers fails.
    """

    def make(allocator: str | Allocation, statistics: bool, checks: bool) -> Debugger:
        check = opened.configuration.check if checks else None
        return opened.debugger(allocator=allocator, statistics=statistics, check=check)

    def move(debugger: Debugger) -> Stop:
        with around(RunningProgram(debugger)):
            return debugger.run(heed=False)

    return verification.verify_observers(make, move, opened.configuration.allocator)


def verify_determinism(
    opened: OpenedProgram, around: Around, checksums: Mapping[str, str]
) -> DeterminismVerification:
    """Compare two runs, and their outputs with the recorded `checksums`; `around` shows both runs.

    Raises the error of a statement that fails, and KeyboardInterrupt after a pause.
    """

    def run(lockstep: Lockstep) -> DiffReport:
        with around(RunningProgram(lockstep.a.debugger, lockstep.b.debugger)):
            return lockstep.run()

    return verification.verify_determinism(lambda: opened.debugger(statistics=False), checksums, run)
