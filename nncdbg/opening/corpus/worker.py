"""A process that watches one case after the other; it loads the program once, a crash loses one case.

It receives jobs and sends results over one connection; the output of kernels goes to standard error.
"""

from __future__ import annotations

import gc
import os
import signal
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from nncdbg.engine.backends import backend as backend_of
from nncdbg.engine.compilation.states import rebound
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.diagnosis.instrumentation import allocation_on
from nncdbg.engine.errors import LoadError, NncdbgError
from nncdbg.engine.execution.linking import Allocation
from nncdbg.nan_watch.baselines.recording import Recording, fingerprint
from nncdbg.nan_watch.corpus.files import CaseFile, case_inputs
from nncdbg.nan_watch.corpus.report import CaseResult
from nncdbg.nan_watch.measuring.gates import Gates
from nncdbg.nan_watch.measuring.measuring import Measuring
from nncdbg.nan_watch.records import FAILED, Case
from nncdbg.nan_watch.runs import case_of
from nncdbg.nan_watch.watching import usual_allocation, watch_run
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.programs import OpenedProgram, open_program
from nncdbg.stats import prepare


@dataclass(frozen=True, slots=True)
class Task:
    """The configuration that all cases share.

    With `keep` the statistics of every statement are sent back; `good` is the recording to compare with.
    """

    configuration: RunConfiguration
    gates: Gates
    max_findings: int = 20
    keep: bool = False
    good: Recording | None = None

    @property
    def statistics(self) -> bool:
        """Return whether the runs must log statistics."""
        return self.gates.measured or self.keep


@dataclass(frozen=True, slots=True)
class CaseRun:
    """One run: a seed, and a case of a folder or None for inputs that are the same each time."""

    index: int
    name: str
    case: CaseFile | None
    seed: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The program is loaded; `fingerprint` is that of its recordings."""

    fingerprint: str


@dataclass(frozen=True, slots=True)
class Refused:
    """An error that affects every case: no case can be run."""

    error: NncdbgError


def main(descriptor: int, boxes: str) -> None:
    """Serve the process at the other end of a connection until it ends.

    `boxes` is the folder for black boxes.
    """
    # Ctrl-C reaches every process of a terminal; the parent decides when workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    connection = Connection(descriptor)
    try:
        _serve(connection, Path(boxes))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # The parent has ended.


def _serve(connection: Connection[Any, Any], boxes: Path) -> None:
    task: Task = connection.recv()
    try:
        opened = opened_for(task)
    except NncdbgError as error:
        connection.send(Refused(error))
        return
    prepare(wait=True)
    # All current objects live until the end: exclude them from garbage collection after each case.
    gc.collect()
    gc.freeze()
    connection.send(Ready(fingerprint(opened.program)))
    while (job := connection.recv()) is not None:
        connection.send(finished_case(opened, task, job, boxes))
        gc.collect()


def opened_for(task: Task) -> OpenedProgram:
    """Return the program of a task; raises the errors that affect every case."""
    opened = open_program(task.configuration)
    in_place = rebound(opened.program) if task.configuration.in_place_states else ()
    allocation_on(backend_of(task.configuration.backend), _allocator(task), in_place)
    # All debuggers of the program share the same text.
    return replace(opened, program=replace(opened.program, listing=opened.program.as_listing()))


def _allocator(task: Task) -> str | Allocation | None:
    configuration = task.configuration
    return usual_allocation(
        configuration.allocator,
        configuration.backend,
        task.gates,
        task.statistics,
        configuration.in_place_states,
    )


def finished_case(
    opened: OpenedProgram, task: Task, job: CaseRun, boxes: Path | None = None
) -> CaseResult | Refused:
    """Run a case and return its result; `boxes` is the folder for black boxes."""
    try:
        return _run(opened, task, job, boxes)
    except MemoryError:
        return CaseResult(job.index, Case(job.name, FAILED, error="out of memory"))


def _run(opened: OpenedProgram, task: Task, job: CaseRun, boxes: Path | None) -> CaseResult | Refused:
    try:
        debugger = _debugger(opened, task, job, boxes)
    except LoadError as error:
        return CaseResult(job.index, Case(job.name, "unreadable", error=str(error)))
    except NncdbgError as error:
        return CaseResult(job.index, Case(job.name, "unfit", error=str(error)))
    try:
        measuring = Measuring(debugger, task.gates, keep=task.keep, good=task.good)
        report = watch_run(debugger, task.gates, max_findings=task.max_findings, measuring=measuring)
    except NncdbgError as error:
        return Refused(error)  # A gate that matches nothing, in this and every other case.
    return CaseResult(job.index, case_of(job.name, report), report, measuring.tracks)


def _debugger(opened: OpenedProgram, task: Task, job: CaseRun, boxes: Path | None) -> Debugger:
    program = opened.program
    given = case_inputs(job.case, program.graphs[program.entry]) if job.case is not None else {}
    return opened.debugger(
        inputs={**opened.configuration.inputs, **given},
        allocator=_allocator(task),
        seed=job.seed,
        statistics=task.statistics,
        boxes=boxes,
    )
