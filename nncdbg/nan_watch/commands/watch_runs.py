"""Run `nncdbg watch`: once in this process, over a corpus of cases, or with several allocators."""

from __future__ import annotations

import signal
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nncdbg.engine.errors import StoppedRun, UsageError
from nncdbg.presentation.run_progress import case_progress, hearing, note_messages, under_way

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.stopping.stops import Stop
    from nncdbg.nan_watch.baselines.recording import Recording
    from nncdbg.nan_watch.measuring.gates import Gates
    from nncdbg.nan_watch.records import Report
    from nncdbg.opening.programs import OpenedProgram
    from nncdbg.presentation.screen import Screen

_ALL = 1 << 20
"""A limit above any number of findings."""


def run_watch(
    options: Namespace, screen: Screen, opened: OpenedProgram, gates: Gates
) -> tuple[Report, dict[str, Any]]:
    """Return the report of the runs that the options describe, and the inputs of a single run.

    Raises UsageError for a journal of several runs.
    """
    several = next((flag for flag, used in _several(options).items() if used), None)
    if several is not None and (options.journal or opened.restart is not None):
        raise UsageError(
            f"a journal is for one run of a training, and {several} watches several",
            hint=f"leave out {several}",
        )
    if options.memory:
        return _in_memories(options, opened), opened.configuration.inputs
    if options.inputs_dir or options.runs > 1:
        return _corpus(options, screen, opened, gates), opened.configuration.inputs
    return _once(options, screen, opened, gates)


def _several(options: Namespace) -> dict[str, bool]:
    return {
        "--memory": bool(options.memory),
        "--inputs-dir": bool(options.inputs_dir),
        "--runs": options.runs > 1,
    }


def _most(options: Namespace) -> int:
    """Return the number of findings that a run reports; a baseline needs all of them."""
    return _ALL if options.baseline or options.write_baseline else int(options.max_findings)


def _once(
    options: Namespace, screen: Screen, opened: OpenedProgram, gates: Gates
) -> tuple[Report, dict[str, Any]]:
    """Run once in this process; return the report and the inputs."""
    from nncdbg.nan_watch.runs import watch_runs
    from nncdbg.nan_watch.watching import usual_allocation
    from nncdbg.opening.journal.journaling import journaled

    configuration = opened.configuration
    made: list[Debugger] = []
    stopped = _Stopped()

    def make(seed: int, statistics: bool) -> Debugger:
        allocator = usual_allocation(
            configuration.allocator,
            configuration.backend,
            statistics,
            configuration.in_place_states,
        )
        debugger = opened.debugger(allocator=allocator, seed=seed, statistics=statistics)
        note_messages(debugger, screen)
        made.append(debugger)
        return debugger

    def move(debugger: Debugger) -> Stop:
        def interrupt() -> None:
            stopped.heard, stopped.why = True, "the run was interrupted"
            debugger.pause()

        def end() -> None:
            stopped.why = f"the budget of {options.budget:g} s expired"
            debugger.pause()

        with (
            journaled(opened, debugger) as recorder,
            under_way(debugger, screen, interrupt),
            hearing(signal.SIGTERM, interrupt),
            _bounded(options, end),
        ):
            stop = debugger.run()
        if recorder is not None:
            if recorder.problem is None:
                screen.note(f"wrote {recorder}")
            else:
                screen.complain(recorder.problem)
        return stop

    report = watch_runs(
        make,
        gates,
        model=options.model,
        seed=configuration.seed,
        max_findings=_most(options),
        good=_good(options),
        record_to=options.record,
        move=move,
    )
    report.interrupted = stopped.heard
    if stopped.why:
        report.error = StoppedRun(stopped.why)
    return report, dict(made[-1].inputs)


@dataclass(slots=True)
class _Stopped:
    """Whether a signal arrived, and why the run was stopped ("" if it was not)."""

    heard: bool = False
    why: str = ""


@contextmanager
def _bounded(options: Namespace, end: Callable[[], None]) -> Iterator[None]:
    """Call `end` when the budget is spent."""
    if options.budget is None:
        yield
        return
    timer = threading.Timer(options.budget, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _good(options: Namespace) -> Recording | None:
    """Return the recording of a good run to compare with."""
    if not options.against:
        return None
    from nncdbg.nan_watch.baselines.recording import read

    return read(options.against)


def _in_memories(options: Namespace, opened: OpenedProgram) -> Report:
    from nncdbg.nan_watch.memory.comparison import memory_plan, watch_memory, write_plan

    backend = opened.configuration.backend
    if backend != "numpy":
        raise UsageError(
            f"--memory needs the backend numpy, but {options.model} is saved for {backend}",
            hint="omit --memory, or add --backend numpy",
        )
    names = ("inputs", "dims", "seed", "max_ops", "history", "backend", "in_place_states")
    fields = {name: getattr(opened.configuration, name) for name in names}
    if options.write_plan:
        write_plan(memory_plan(opened.program, **fields), options.write_plan)
    return watch_memory(opened.program, plan=options.plan, max_findings=_most(options), **fields)


def _corpus(options: Namespace, screen: Screen, opened: OpenedProgram, gates: Gates) -> Report:
    from nncdbg.nan_watch.corpus.corpus import run_corpus
    from nncdbg.nan_watch.corpus.task import WatchTask
    from nncdbg.opening.corpus.options import corpus_fields
    from nncdbg.opening.corpus.source import CorpusProgram

    source = CorpusProgram(opened.configuration, opened.program)
    task = WatchTask(source, gates, max_findings=_most(options), good=_good(options))
    with case_progress(screen) as progress:
        return run_corpus(
            task,
            options.inputs_dir,
            seed=opened.configuration.seed,
            record_to=options.record,
            progress=progress,
            **corpus_fields(options),
        )
