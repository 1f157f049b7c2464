"""Watch a program with many cases, in parallel processes.

Results are combined in the order of names, as in a sequential run, whatever order the cases finish in.
A crashing process loses only its own case, and is replaced.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import wait
from types import FrameType
from typing import Any

from nncdbg.engine.errors import RunError, UsageError
from nncdbg.nan_watch.baselines.recording import record, write
from nncdbg.nan_watch.corpus.files import case_files
from nncdbg.nan_watch.corpus.process import Process
from nncdbg.nan_watch.corpus.report import CaseResult, CorpusReport
from nncdbg.nan_watch.corpus.worker import CaseRun, Ready, Refused, Task
from nncdbg.nan_watch.measuring.measuring import check_good
from nncdbg.nan_watch.records import Case, Report

NOT_RUN = "not run"

_PACE = 0.1
"""Seconds between two checks for a stop."""

_AHEAD = 32
"""Cases per process that may finish before an earlier one: their results wait in memory."""

Progress = Callable[[int, int], None]
"""Called with the number of finished cases and the total."""


def run_corpus(
    task: Task,
    folder: str | os.PathLike[str] | None,
    *,
    runs: int = 1,
    seed: int = 0,
    jobs: int | None = None,
    budget: float | None = None,
    record_to: str | os.PathLike[str] | None = None,
    progress: Progress = lambda done, total: None,
) -> Report:
    """Watch a program with each case of a folder, or `runs` times without one, with seeds from `seed` on.

    With both, each case is run `runs` times.  `jobs` is the number of processes (default: the number of
    cores), `budget` the seconds after which no case is started or waited for.  `record_to` is the file of a
    recording of all runs together.  SIGINT and SIGTERM end the watch; the report then covers the finished
    cases, with `Report.interrupted`.

    A case is `ok`, `tripped`, `failed` (the run), `crashed` (the process), `unreadable`, `unfit`
    (its inputs do not fit) or `not run`.  Raises LoadError for an unreadable model or folder, UsageError for
    options that fit no case.
    """
    check_good(task.gates, task.good)
    task = replace(task, keep=task.keep or record_to is not None or task.good is not None)
    asked, skipped = jobs_of(folder, runs, seed)
    if jobs is not None and jobs < 1:
        raise UsageError(f"invalid number of jobs: {jobs}", hint="use 1 or more, such as --jobs 1")
    if budget is not None and not budget > 0:
        raise UsageError(
            f"invalid budget: {budget} seconds", hint="use a number above 0, such as --budget 60"
        )
    count = min(len(asked), jobs or cores())
    whole = CorpusReport(task.configuration.program, task.gates, task.max_findings)
    with tempfile.TemporaryDirectory(prefix="nncdbg-corpus-") as boxes, _signals() as signalled:
        pool = _Pool(task, asked, count, boxes, whole, progress)
        try:
            pool.run(signalled, None if budget is None else time.monotonic() + budget)
        finally:
            pool.close()
    if skipped:
        whole.note(
            f"ignored files that are not cases: {', '.join(skipped[:5])}"
            f"{' and others' if len(skipped) > 5 else ''}"
        )
    if pool.left:
        whole.leave(
            pool.left, "the watch was interrupted" if signalled else f"the budget of {budget:g} s expired"
        )
    report = whole.finished(task.good)
    report.interrupted = bool(signalled)
    if record_to is not None:
        write(record(pool.fingerprint, task.configuration.program, whole.tracks.ordered()), record_to)
    return report


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


class _Pool:
    """The worker processes and their jobs; `whole` gets the results in the order of the jobs."""

    def __init__(
        self,
        task: Task,
        asked: Sequence[CaseRun],
        count: int,
        boxes: str,
        whole: CorpusReport,
        progress: Progress,
    ) -> None:
        self._task = task
        self._waiting = deque(asked)
        self._total = len(asked)
        self._count = count
        self._boxes = boxes
        self._whole = whole
        self._progress = progress
        self._done: dict[int, CaseResult] = {}
        self._next = 0
        """The index of the next job to add to the report."""
        self._finished = 0
        self._processes: list[Process] = []
        self.fingerprint = ""
        """The fingerprint of the program, for a recording."""
        self.left: list[str] = []
        """The names of the cases that were not run, once the pool is closed."""

    def run(self, signalled: Sequence[int], deadline: float | None) -> None:
        """Run all jobs, or as many as the deadline allows."""
        while self._finished < self._total and not signalled:
            if deadline is not None and time.monotonic() >= deadline:
                return
            self._staff()
            for ready in wait([process.connection for process in self._processes], _PACE):
                process = next(each for each in self._processes if each.connection is ready)
                self._hear(process)
            self._progress(self._finished, self._total)

    def _staff(self) -> None:
        """Start as many processes as there is work for, each with a job."""
        busy = sum(1 for process in self._processes if process.job is not None)
        while len(self._processes) < min(self._count, busy + len(self._waiting)):
            self._processes.append(Process(self._task, self._boxes, self._count))
        for process in self._processes:
            if process.ready and process.job is None and self._waiting:
                if self._waiting[0].index >= self._next + _AHEAD * self._count:
                    return
                process.begin(self._waiting.popleft())

    def _hear(self, process: Process) -> None:
        message: Any = process.receive()
        match message:
            case Ready(fingerprint):
                process.ready = True
                self.fingerprint = fingerprint
            case Refused(error):
                raise error
            case CaseResult():
                process.job = None
                self._take(message)
            case None:
                self._processes.remove(process)
                self._lost(process, process.lost())

    def _lost(self, process: Process, how: str) -> None:
        job = process.job
        if job is None:
            raise RunError(
                f"a worker process {how} before it received a case",
                hint="run `nncdbg run` with one of the cases",
            )
        self._take(CaseResult(job.index, Case(job.name, "crashed", error=f"the process {how}")))

    def _take(self, result: CaseResult) -> None:
        self._finished += 1
        self._done[result.index] = result
        while self._next in self._done:
            self._whole.add(self._done.pop(self._next))
            self._next += 1

    def close(self) -> None:
        """End all processes; add the finished results that are waiting, and list the rest as not run."""
        for process in self._processes:
            if process.job is not None:
                self._waiting.append(process.job)
            process.stop()
        rest = {job.index: job for job in self._waiting}
        self.left = [rest[index].name for index in sorted(rest)]
        for index in range(self._next, self._total):
            result = self._done.get(index) or CaseResult(index, Case(rest[index].name, NOT_RUN))
            self._whole.add(result)
