"""Runs from the first statement to the end, as commands of the shell make them.

`nncdbg run` shows what a run returned, also whether observers change it and whether it is deterministic;
`nncdbg autotune` measures the kernels of all backends in one.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nncdbg.comparison.kernels import StatementKernel, Tuning
from nncdbg.comparison.verification import DeterminismVerification, RecordedOutputs, Verification
from nncdbg.engine.divergence import verification
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.journal.recording import journaled
from nncdbg.opening.journal.reproduction import reproducing
from nncdbg.opening.programs import OpenedProgram, open_program
from nncdbg.opening.progress import Around, RunningProgram
from nncdbg.opening.run import failure_unless_paused
from nncdbg.opening.schedule_logs.run_accesses import recorded_accesses
from nncdbg.opening.state_file import save_states as save_states_to
from nncdbg.stats.series import TrackedSeries

if TYPE_CHECKING:
    from nncdbg.comparison.report import DiffReport
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.divergence.lockstep import Lockstep
    from nncdbg.engine.execution.linking import Allocation
    from nncdbg.engine.stopping.stops import Stop


@dataclass(frozen=True, slots=True)
class CompleteRun:
    """A run that ended: by itself, or early with an `error`."""

    outputs: Mapping[str, Any]
    tracks: Sequence[TrackedSeries]
    seconds: float
    ops: int
    """Statements that ran."""
    notes: Sequence[str]
    """Notes on the inputs."""
    backend: str
    fallbacks: Sequence[StatementKernel]
    """The statements that fell back to NumPy."""
    kernels: Sequence[StatementKernel]
    """The statements whose kernel is not that of the run's backend."""
    recorded: RecordedOutputs
    """The comparison of the outputs with those of the recorded step."""
    error: NncdbgError | None
    saved_states: int | None
    """The number of states that were saved; None if none were to be saved."""
    check: Mapping[str, Any] | None
    """The document of the comparison with micro programs, if there was one."""
    check_words: str
    journal: str
    """The runs that were written to a journal; empty without one."""
    journal_problem: NncdbgError | None
    reproduction: str | None
    """The comparison with the run in a journal in a sentence, which may be empty; None without one."""
    reproduced: bool
    """Whether no step differed from the run in the journal."""


def opened_for_run(configuration: RunConfiguration, save_states: str | None) -> OpenedProgram:
    """Open a program.  Raises UsageError if its states cannot be saved at the end, as by `save_states`."""
    if save_states and configuration.outputs:
        raise UsageError(
            "--save-states needs the whole run, and --output runs a part of it", hint="leave out --output"
        )
    opened = open_program(configuration)
    frees = configuration.allocator in ("arena", "poison") and not configuration.in_place_states
    if save_states and opened.program.runs and frees:
        raise UsageError(
            f"--save-states needs the states at the end, and the allocator {configuration.allocator} frees a "
            "state after its last use",
            hint="add --in-place-states, or use --allocator debug",
        )
    return opened


def run_completely(
    opened: OpenedProgram,
    model: str,
    around: Around,
    checksums: Mapping[str, str],
    *,
    save_states: str | None = None,
    accesses: str | None = None,
) -> CompleteRun:
    """Run a program to its end, and compare the outputs with recorded checksums; `around` shows the run.

    The states are saved in the file `save_states`, and the accesses of a scheduled program in `accesses`.
    Hints of errors name the `model`.
    Raises the errors of `OpenedProgram.debugger`, and KeyboardInterrupt after a pause.
    """
    configuration = opened.configuration
    # Without a journal and states to save, nothing reads old values.
    keeps = configuration.journal or opened.restart is not None or save_states
    history = configuration.history if keeps or configuration.history is not None else 0
    debugger = opened.debugger(statistics=False, history=history)
    start = time.perf_counter()
    with (
        recorded_accesses(debugger, accesses),
        reproducing(opened, debugger) as reproduction,
        journaled(opened, debugger) as recorder,
        around(RunningProgram(debugger)),
    ):
        stop = debugger.run()
    # A journal that cannot be written has paused the run.
    unwritten = recorder.problem if recorder is not None and recorder.has_stopped else None
    error = unwritten or failure_unless_paused(stop, model)
    seconds = time.perf_counter() - start
    states = debugger.states if save_states and error is None else None
    if save_states and states is not None:
        save_states_to(states, save_states)
    coverage = None if debugger.micro is None else debugger.micro.coverage
    return CompleteRun(
        outputs=debugger.outputs or {},
        tracks=debugger.tracks,
        seconds=seconds,
        ops=debugger.timeline.tick,
        notes=[*map(str, debugger.notes)],
        backend=debugger.backend.name,
        fallbacks=debugger.loaded.fallbacks,
        kernels=[each for each in debugger.loaded.kernels() if each.reason != "default"],
        recorded=verification.recorded_outputs(debugger, checksums) if checksums else RecordedOutputs(0),
        error=error,
        saved_states=None if states is None else len(states),
        check=None if coverage is None else coverage.as_dict(),
        check_words="" if coverage is None else str(coverage),
        journal="" if recorder is None else str(recorder),
        journal_problem=None if recorder is None else recorder.problem,
        reproduction=None if reproduction is None else str(reproduction),
        reproduced=reproduction is None or not reproduction.difference,
    )


# -- verification ----------------------------------------------------------------------------------


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


# -- tuning ----------------------------------------------------------------------------------------


def tune(
    configuration: RunConfiguration, candidates: Collection[str], around: Around
) -> tuple[Tuning, NncdbgError | None]:
    """Run a program, and measure the kernels of backends (none named: of all) on copies of the operands.

    Return the choice, and the error that ended the run early.  `around` shows the run.  Raises UsageError for
    a backend that is unavailable, the errors of `open_program`, and KeyboardInterrupt after a pause.
    """
    from nncdbg.engine.tuning import KernelTuner, available_backends

    backends, unavailable = available_backends(candidates)
    debugger = open_program(configuration).debugger(statistics=False)
    tuner = KernelTuner(debugger, backends, unavailable)
    with around(RunningProgram(debugger)):
        stop = debugger.run()
    return tuner.tuning, failure_unless_paused(stop, configuration.program)
