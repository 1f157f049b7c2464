"""The measurement behind `nncdbg autotune`: the kernels of all backends, for each statement of a run."""

from __future__ import annotations

from collections.abc import Collection

from nncdbg.comparison.kernels import Tuning
from nncdbg.engine.tuning.tuner import KernelTuner, available_backends
from nncdbg.errors import NncdbgError
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.programs import open_program
from nncdbg.opening.progress import Around, RunningProgram
from nncdbg.opening.run import failure_unless_paused


def tune(
    configuration: RunConfiguration, candidates: Collection[str], around: Around
) -> tuple[Tuning, NncdbgError | None]:
    """Run a program, and measure the kernels of backends (none named: of all) on copies of the operands.

    Return the choice, and the error that ended the run early.  `around` shows the run.  Raises UsageError for
    a backend that is unavailable, the errors of `open_program`, and KeyboardInterrupt after a pause.
    """
    backends, unavailable = available_backends(candidates)
    debugger = open_program(configuration).debugger(statistics=False)
    tuner = KernelTuner(debugger, backends, unavailable)
    with around(RunningProgram(debugger)):
        stop = debugger.run()
    return tuner.tuning, failure_unless_paused(stop, configuration.program)
