"""Run a task with many cases, in parallel processes or on an executor.

Results arrive in the order of names, as in a sequential run, whatever order the cases finish in.
"""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

from nncdbg.engine.errors import RunError, UsageError
from nncdbg.opening.corpus.cases import NOT_RUN, Case, CaseResult, CaseRun
from nncdbg.opening.corpus.engines import PROCESSES, checked_name, open_engine
from nncdbg.opening.corpus.files import case_files
from nncdbg.opening.corpus.on_executor import ExecutorCases, ExecutorFailed
from nncdbg.opening.corpus.own_processes import OwnProcesses
from nncdbg.opening.corpus.worker import CorpusTask

_PACE = 0.1
"""Seconds between two checks for a stop."""

_AHEAD = 32
"""Cases per process that may finish before an earlier one: their results wait in memory."""

Progress = Callable[[int, int], None]
"""Called with the number of finished cases and the total."""


@dataclass(frozen=True, slots=True)
class CorpusEnd:
    """How the run of a corpus ended.

    `left` are the names of the cases that were not run, and `why` is the reason.  `skipped` are the files of
    the folder that are no cases.  `error` is the failure of the executor.
    """

    left: list[str]
    why: str
    skipped: list[str]
    interrupted: bool
    error: RunError | None

    @property
    def note(self) -> str:
        """Return a note about files that are no cases; "" without one."""
        more = " and others" if len(self.skipped) > 5 else ""
        shown = ", ".join(self.skipped[:5])
        return f"ignored files that are not cases: {shown}{more}" if self.skipped else ""

    def failure(self, cases: int) -> RunError | None:
        """Return the failure of the executor, or that none of the cases was run."""
        if self.error is None and len(self.left) == cases:
            return RunError(f"no case finished: {self.why}")
        return self.error

    def left_out(self, cases: int) -> str:
        """Return what was not run of a number of cases, and why."""
        shown = ", ".join(self.left[:3]) + (" and others" if len(self.left) > 3 else "")
        return f"{len(self.left)} of {cases}, because {self.why}: {shown}"


def run_cases(
    task: CorpusTask,
    folder: str | os.PathLike[str] | None,
    add: Callable[[CaseResult], None],
    *,
    runs: int = 1,
    seed: int = 0,
    jobs: int | None = None,
    executor: str | Executor = PROCESSES,
    budget: float | None = None,
    progress: Progress = lambda done, total: None,
) -> CorpusEnd:
    """Run a task with each case of a folder, or `runs` times without one, with seeds from `seed` on.

    `add` receives the results in the order of the cases; a case that was not run has the status `not run`.
    With both, each case is run `runs` times.  `jobs` is the number of processes (default: the number of
    cores).  `executor` is `processes` (of nncdbg), `dask`, `ray` or `mpi` with `jobs` workers of its own, an
    address such as `dask=tcp://host:8786`, or an executor with `jobs` workers, which stays open.  `budget`
    is the number of seconds after which no case is started or waited for.  SIGINT and SIGTERM end the run.

    A case that loses its process is `crashed`.  On an executor the case first runs up to two times more.  An
    executor that fails ends the run.  Raises LoadError for an unreadable model or folder, UsageError for
    options that fit no case.
    """
    asked, skipped = jobs_of(folder, runs, seed)
    if jobs is not None and jobs < 1:
        raise UsageError(f"invalid number of jobs: {jobs}", hint="use 1 or more, such as --jobs 1")
    if budget is not None and not budget > 0:
        raise UsageError(
            f"invalid budget: {budget} seconds", hint="use a number above 0, such as --budget 60"
        )
    if isinstance(executor, str):
        checked_name(executor)
    count = min(len(asked), jobs or cores())
    failure = None
    with _signals() as signalled, _workers(_packed(task), executor, count) as workers:
        collection = _Collection(workers, asked, add, progress)
        try:
            collection.run(signalled, None if budget is None else time.monotonic() + budget)
        except ExecutorFailed as failed:
            failure = failed.error
        finally:
            collection.close()
    why = _why_left(failure, signalled, budget) if collection.left else ""
    return CorpusEnd(collection.left, why, skipped, bool(signalled), failure)


def _packed(task: CorpusTask) -> bytes:
    """Return a task as it is sent.  Raises UsageError if it cannot be pickled."""
    try:
        return pickle.dumps(task)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UsageError(
            f"cannot send the program and its inputs to worker processes: {error}",
            hint="save the program to a file, and use its path",
        ) from error


def _why_left(failure: RunError | None, signalled: Sequence[int], budget: float | None) -> str:
    if failure is not None:
        return "the executor failed"
    return "the run was interrupted" if signalled else f"the budget of {budget:g} s expired"


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def jobs_of(folder: str | os.PathLike[str] | None, runs: int, seed: int) -> tuple[list[CaseRun], list[str]]:
    """Return the runs for a folder of cases and a number of seeds, and the names of files without a case."""
    if runs < 1:
        raise UsageError(f"invalid number of runs: {runs}", hint="use 1 or more, such as --runs 1")
    seeds = range(seed, seed + runs)
    if folder is None:
        return [CaseRun(index, f"seed {each}", None, each) for index, each in enumerate(seeds)], []
    cases, skipped = case_files(os.fspath(folder))
    pairs = [(case, each) for case in cases for each in seeds]
    return [
        CaseRun(index, case.name if runs == 1 else f"{case.name}, seed {each}", case, each)
        for index, (case, each) in enumerate(pairs)
    ], skipped


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Yield a list that collects SIGINT and SIGTERM; signals arrive only on the main thread."""
    heard: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield heard
        return

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(number)

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Workers(Protocol):
    """Whatever runs cases: processes of nncdbg, or an executor."""

    count: int

    @property
    def has_room(self) -> bool: ...

    def submit(self, job: CaseRun) -> None: ...

    def results(self, seconds: float) -> Iterable[CaseResult]: ...

    def close(self) -> None: ...


@contextmanager
def _workers(task: bytes, executor: str | Executor, count: int) -> Iterator[_Workers]:
    if executor == PROCESSES:
        with tempfile.TemporaryDirectory(prefix="nncdbg-corpus-") as boxes:
            yield OwnProcesses(task, count, boxes)
        return
    with open_engine(executor, count) as engine:
        yield ExecutorCases(engine.executor, task, engine.workers)


class _Collection:
    """Submits jobs to workers; `add` receives the results in the order of the jobs."""

    def __init__(
        self,
        workers: _Workers,
        asked: Sequence[CaseRun],
        add: Callable[[CaseResult], None],
        progress: Progress,
    ) -> None:
        self._workers = workers
        self._waiting = deque(asked)
        self._running: dict[int, CaseRun] = {}
        self._total = len(asked)
        self._add = add
        self._progress = progress
        self._done: dict[int, CaseResult] = {}
        self._next = 0
        """The index of the next job whose result is added."""
        self._finished = 0
        self.left: list[str] = []
        """The names of the cases that were not run, once the collection is closed."""

    def run(self, signalled: Sequence[int], deadline: float | None) -> None:
        """Run all jobs, or as many as the deadline allows; raises ExecutorFailed."""
        while self._finished < self._total and not signalled:
            if deadline is not None and time.monotonic() >= deadline:
                return
            self._submit()
            for result in self._workers.results(_PACE):
                self._take(result)
            self._progress(self._finished, self._total)

    def _submit(self) -> None:
        ahead = self._next + _AHEAD * self._workers.count
        while self._waiting and self._workers.has_room and self._waiting[0].index < ahead:
            job = self._waiting.popleft()
            self._running[job.index] = job
            self._workers.submit(job)

    def _take(self, result: CaseResult) -> None:
        self._finished += 1
        del self._running[result.index]
        self._done[result.index] = result
        while self._next in self._done:
            self._add(self._done.pop(self._next))
            self._next += 1

    def close(self) -> None:
        """End the work; add the finished results that are waiting, and list the rest as not run."""
        self._workers.close()
        rest = {job.index: job for job in (*self._waiting, *self._running.values())}
        self.left = [rest[index].name for index in sorted(rest)]
        for index in range(self._next, self._total):
            result = self._done.get(index) or CaseResult(index, Case(rest[index].name, NOT_RUN))
            self._add(result)
