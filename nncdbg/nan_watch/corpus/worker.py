"""A process that watches one case after the other: the program is loaded once, a crash takes only itself.

It is told what to do, and answers, over one connection; whatever kernels print goes to standard error.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nncdbg.engine.backends import backend as backend_of
from nncdbg.engine.compilation.linking import Allocation
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.errors import LoadError, NncdbgError
from nncdbg.engine.frontends import load
from nncdbg.engine.graph import Graph
from nncdbg.engine.observers.instrumentation import allocation_on
from nncdbg.engine.ops.library import load_op_library
from nncdbg.engine.process.black_box import BlackBox
from nncdbg.nan_watch.baselines.recording import Recording, fingerprint
from nncdbg.nan_watch.corpus.files import CaseFile, case_inputs
from nncdbg.nan_watch.corpus.report import Result
from nncdbg.nan_watch.measuring.gates import Gates
from nncdbg.nan_watch.measuring.measuring import Measuring
from nncdbg.nan_watch.records import FAILED, Case
from nncdbg.nan_watch.runs import case_of
from nncdbg.nan_watch.watching import usual_allocation, watch_run
from nncdbg.stats import prepare

if TYPE_CHECKING:
    from nncdbg.engine.graph import Program


@dataclass(frozen=True, slots=True)
class Task:
    """What all cases have in common; the fields from `inputs` on are as for Debugger.

    With `keep` the statistics of every statement are sent back; `good` is the recording to compare with.
    """

    model: str
    gates: Gates
    flat: bool = False
    stores: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    max_findings: int = 20
    keep: bool = False
    good: Recording | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    backend: str = "numpy"
    fallback: bool = False
    allocator: str | None = None
    history: int | str | None = None
    max_ops: int | None = None

    @property
    def statistics(self) -> bool:
        """Whether the runs have to log them."""
        return self.gates.measured or self.keep


@dataclass(frozen=True, slots=True)
class Job:
    """One run: a case of a folder, or none for inputs that are the same each time, and a seed."""

    index: int
    name: str
    case: CaseFile | None
    seed: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The program is loaded; `fingerprint` is that of a recording of it."""

    fingerprint: str


@dataclass(frozen=True, slots=True)
class Refused:
    """What is wrong is not wrong with one case: no case can be run."""

    error: NncdbgError


def main(descriptor: int, boxes: str) -> None:
    """Serve the process at the other end of a connection until it ends.

    `boxes` is the folder for black boxes.
    """
    # Ctrl-C reaches every process of a terminal; the one in front decides what becomes of the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    connection = Connection(descriptor)
    try:
        _serve(connection, Path(boxes))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # Nobody is left to work for.


def _serve(connection: Connection[Any, Any], boxes: Path) -> None:
    task: Task = connection.recv()
    try:
        program = _loaded(task)
    except NncdbgError as error:
        connection.send(Refused(error))
        return
    prepare(wait=True)
    # What stands now stands until the end: the collector need not look at it after each case.
    gc.collect()
    gc.freeze()
    connection.send(Ready(fingerprint(program)))
    while (job := connection.recv()) is not None:
        connection.send(_done(program, task, job, boxes))
        gc.collect()


def _loaded(task: Task) -> Program:
    for library in task.libraries:
        load_op_library(library)
    allocation_on(backend_of(task.backend), _allocator(task))
    program = load(task.model, flat=task.flat, stores=task.stores)
    # Every debugger of it shows the same text.
    return replace(program, listing=program.as_listing())


def _allocator(task: Task) -> str | Allocation | None:
    return usual_allocation(task.allocator, task.backend, task.gates, task.statistics)


def _done(program: Program, task: Task, job: Job, boxes: Path) -> Result | Refused:
    try:
        return _run(program, task, job, boxes)
    except MemoryError:
        return Result(job.index, Case(job.name, FAILED, error="out of memory"))


def _run(program: Program, task: Task, job: Job, boxes: Path) -> Result | Refused:
    graph = program.graphs[program.entry]
    try:
        debugger = _debugger(program, graph, task, job, boxes)
    except LoadError as error:
        return Result(job.index, Case(job.name, "unreadable", error=str(error)))
    except NncdbgError as error:
        return Result(job.index, Case(job.name, "unfit", error=str(error)))
    try:
        measuring = Measuring(debugger, task.gates, keep=task.keep, good=task.good)
        report = watch_run(debugger, task.gates, max_findings=task.max_findings, measuring=measuring)
    except NncdbgError as error:
        return Refused(error)  # A gate that names nothing here: it would not in any other case.
    return Result(job.index, case_of(job.name, report), report, measuring.tracks)


def _debugger(program: Program, graph: Graph, task: Task, job: Job, boxes: Path) -> Debugger:
    given = case_inputs(job.case, graph) if job.case is not None else {}
    return Debugger(
        program,
        {**task.inputs, **given},
        backend=task.backend,
        fallback=task.fallback,
        allocator=_allocator(task),
        dims=task.dims,
        seed=job.seed,
        history=task.history,
        statistics=task.statistics,
        max_ops=task.max_ops,
        black_box=BlackBox(task.model, boxes),
    )
