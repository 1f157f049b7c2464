"""Run a task with many cases, in parallel processes or on an executor.

Results arrive in the order of names, as in a sequential run, whatever order the cases finish in.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Pipe
from multiprocessing.connection import wait as wait_for_connections
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from nncdbg.errors import RunError, UsageError
from nncdbg.opening.corpus.cases import CRASHED, NOT_RUN, Case, CaseResult, CaseRun, case_files
from nncdbg.opening.corpus.engines import PROCESSES, CaseExecution, cores, open_engine, thread_shares
from nncdbg.opening.corpus.worker import CorpusTask, Ready, Refused, SentTask, TaskMissing, run_batch
from nncdbg.process.crash_report_reader import read_box, sentence

# -- own processes ---------------------------------------------------------------------------------


_CODE = """
import json, sys
sys.path[:] = json.loads(sys.argv[3])
from nncdbg.opening.corpus.worker import main
main(int(sys.argv[1]), sys.argv[2])
"""

_PATIENCE = 2.0
"""Seconds that a process has to exit by itself."""


class Process:
    """A fresh interpreter; a fork would copy locks of threads that do not exist in the child.

    `others` is the number of worker processes that share the cores.
    """

    def __init__(self, task: bytes, boxes: str, others: int) -> None:
        self.job: CaseRun | None = None
        self.ready = False
        self._boxes = Path(tempfile.mkdtemp(dir=boxes))
        self.connection, far = Pipe()
        paths = [path or os.getcwd() for path in sys.path]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CODE, str(far.fileno()), str(self._boxes), json.dumps(paths)],
            stdin=subprocess.DEVNULL,
            pass_fds=[far.fileno()],
            env={**os.environ, **thread_shares(others)},
        )
        far.close()
        self._send(task)

    def begin(self, job: CaseRun) -> None:
        """Start a job."""
        self.job = job
        self._send(job)

    def receive(self) -> Any:
        """Return the next message; None if the process has ended."""
        try:
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            return None

    def _send(self, message: Any) -> None:
        try:
            self.connection.send(message)
        except (BrokenPipeError, ConnectionResetError):
            return  # The process has ended: `receive` reports it, and the job is lost.

    def lost(self) -> str:
        """Return how the process ended: `was ended by SIGSEGV`."""
        self._await_end()
        return _ending(self._process.returncode) + self._inside()

    def stop(self) -> None:
        """End the process, by force if it is working."""
        if self.job is None:
            self._send(None)
        else:
            self._process.kill()
        self._await_end()

    def _await_end(self) -> None:
        self.connection.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _inside(self) -> str:
        """Return the kernel that was running, unless it is built in."""
        for box in self._boxes.glob("*.box"):
            record = read_box(str(box)).record
            if record is not None:
                return f" {sentence(record)}"
        return ""


def _ending(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was ended by {name}" + (", which may mean out of memory," if name == "SIGKILL" else "")


class OwnProcesses:
    """`count` processes that run one case after the other; `boxes` is the folder for their black boxes."""

    def __init__(self, task: bytes, count: int, boxes: str) -> None:
        self._task = task
        self.count = count
        self._boxes = boxes
        self._waiting: deque[CaseRun] = deque()
        self._processes: list[Process] = []

    @property
    def has_room(self) -> bool:
        """Return whether another case can start."""
        return self._busy() + len(self._waiting) < self.count

    def submit(self, job: CaseRun) -> None:
        """Run a case as soon as a process is ready."""
        self._waiting.append(job)
        if len(self._processes) < self._busy() + len(self._waiting):
            self._processes.append(Process(self._task, self._boxes, self.count))

    def results(self, seconds: float) -> Iterator[CaseResult]:
        """Yield the results that arrive within some seconds; raises the error that refuses all cases."""
        for process in self._processes:
            if process.ready and process.job is None and self._waiting:
                process.begin(self._waiting.popleft())
        for ready in wait_for_connections([process.connection for process in self._processes], seconds):
            result = self._hear(next(each for each in self._processes if each.connection is ready))
            if result is not None:
                yield result

    def _busy(self) -> int:
        return sum(1 for process in self._processes if process.job is not None)

    def _hear(self, process: Process) -> CaseResult | None:
        message = process.receive()
        match message:
            case Ready():
                process.ready = True
            case Refused(error):
                raise error
            case CaseResult():
                process.job = None
                return message
            case None:
                self._processes.remove(process)
                return _lost(process.job, process.lost())
        return None

    def close(self) -> None:
        """End all processes, by force if they work."""
        for process in self._processes:
            process.stop()


def _lost(job: CaseRun | None, how: str) -> CaseResult:
    if job is None:
        raise RunError(
            f"a worker process {how} before it received a case",
            hint="run `nncdbg run` with one of the cases",
        )
    return CaseResult(job.index, Case(job.name, CRASHED, error=f"the process {how}"))


# -- executors -------------------------------------------------------------------------------------
# Cases on an executor of `concurrent.futures`; a case of a lost worker runs again.
#
# Fast cases run in batches.  The first loss may be the fault of another case of the same worker, so the case
# runs again alone.

_MOST_LOSSES = 3
"""Workers that a case may lose before it counts as crashed."""

_QUEUED = 2
"""Batches per worker that are submitted at a time, so that a worker need not wait for its next one."""

_DURATION = 0.1
"""Seconds of work in a batch: an executor spends milliseconds on each batch."""

_LARGEST = 16
"""Most cases in a batch, so that a lost worker loses few results."""

_LOSSES = frozenset(
    {
        "distributed.scheduler.KilledWorker",
        "ray.exceptions.NodeDiedError",
        "ray.exceptions.OutOfMemoryError",
        "ray.exceptions.WorkerCrashedError",
    }
)
"""Exceptions that report a lost worker, by name, because their libraries may not be installed."""


class ExecutorFailed(Exception):
    """The executor can run no further case."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.error = RunError(why, hint=hint)


class ExecutorCases:
    """Cases on an executor with `count` workers; the caller owns the executor."""

    def __init__(self, executor: Executor, task: bytes, count: int) -> None:
        self._executor = executor
        self._sent = SentTask.of(task)
        self.count = count
        self._waiting: deque[CaseRun] = deque()
        self._batches: dict[Future[Any], Sequence[CaseRun]] = {}
        self._suspects: deque[CaseRun] = deque()
        """Cases of lost workers, to run again one at a time."""
        self._losses: Counter[int] = Counter()
        self._size = 1
        """Cases per batch."""
        self._sends = count
        """Batches that are still sent with the task, one for each worker."""

    @property
    def has_room(self) -> bool:
        """Return whether another case can be submitted."""
        # A case whose last worker was lost runs alone.
        alone = any(self._losses[job.index] for jobs in self._batches.values() for job in jobs)
        if self._suspects or alone:
            return False
        return len(self._waiting) < self._size * (_QUEUED * self.count - len(self._batches))

    def submit(self, job: CaseRun) -> None:
        """Run a case in the next batch."""
        self._waiting.append(job)

    def results(self, seconds: float) -> Iterator[CaseResult]:
        """Yield the results that arrive within some seconds.

        Raises the error that refuses all cases, and ExecutorFailed if the executor accepts no case.
        """
        if self._suspects and not self._batches:
            self._start([self._suspects.popleft()])
        while self._waiting and not self._suspects:
            self._start([self._waiting.popleft() for _ in range(min(self._size, len(self._waiting)))])
        done, _ = wait(self._batches, seconds, FIRST_COMPLETED)
        failed = None
        for future in done:
            try:
                results = self._results(future, self._batches[future])
            except ExecutorFailed as failure:
                failed = failure
                continue
            del self._batches[future]
            yield from results
        if failed is not None:
            raise failed

    def _start(self, jobs: Sequence[CaseRun], *, complete: bool = False) -> None:
        """Submit a batch, with the task if `complete` or if no other batch brought it to a worker."""
        complete = complete or self._sends > 0
        self._sends -= 1
        try:
            sent = self._sent if complete else self._sent.reference
            future = self._executor.submit(run_batch, sent, jobs)
        except (RuntimeError, pickle.PicklingError) as error:  # BrokenExecutor is a RuntimeError
            raise _failed("the executor accepts no cases", error) from error
        self._batches[future] = jobs

    def _results(self, future: Future[Any], jobs: Sequence[CaseRun]) -> Sequence[CaseResult]:
        """Return the results of a batch, without those of cases that have to run again."""
        if future.cancelled():
            raise _failed("the executor cancelled a case", None)
        error = future.exception()
        if error is None:
            return self._returned(future.result(), jobs)
        if isinstance(error, BrokenExecutor):
            raise _failed("the executor lost a worker and cannot replace it", error)
        if not any(f"{each.__module__}.{each.__qualname__}" in _LOSSES for each in type(error).__mro__):
            raise _failed("a worker of the executor cannot run a case", error)
        return [result for job in jobs if (result := self._lost(job, error)) is not None]

    def _returned(self, outcome: Any, jobs: Sequence[CaseRun]) -> Sequence[CaseResult]:
        if isinstance(outcome, Refused):
            raise outcome.error
        if isinstance(outcome, TaskMissing):
            self._start(jobs, complete=True)
            return []
        results: list[CaseResult] = outcome
        slowest = max(result.case.seconds for result in results)
        self._size = max(1, min(2 * self._size, _LARGEST, int(_DURATION / max(slowest, 1e-6))))
        return results

    def _lost(self, job: CaseRun, error: BaseException) -> CaseResult | None:
        """Return the result of a case that lost its last worker; None if the case has to run again."""
        self._losses[job.index] += 1
        if self._losses[job.index] < _MOST_LOSSES:
            self._suspects.append(job)
            return None
        why = f"the case lost its worker {_MOST_LOSSES} times ({type(error).__name__})"
        return CaseResult(job.index, Case(job.name, CRASHED, error=why))

    def close(self) -> None:
        """Cancel the cases that have not started."""
        for future in self._batches:
            future.cancel()


def _failed(what: str, error: BaseException | None) -> ExecutorFailed:
    why = "" if error is None else f": {type(error).__name__}: {error}"
    return ExecutorFailed(
        f"{what}{why}", "install the same version of nncdbg on each worker, or use --executor processes"
    )


# -- running a corpus ------------------------------------------------------------------------------

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
    execution: CaseExecution,
    *,
    runs: int = 1,
    seed: int = 0,
    progress: Progress = lambda done, total: None,
) -> CorpusEnd:
    """Run a task with each case of a folder, or `runs` times without one, with seeds from `seed` on.

    `add` receives the results in the order of the cases; a case that was not run has the status `not run`.
    With both, each case is run `runs` times.  SIGINT and SIGTERM end the run.

    A case that loses its process is `crashed`.  On an executor the case first runs up to two times more.  An
    executor that fails ends the run.  Raises LoadError for an unreadable model or folder, UsageError for
    options that fit no case.
    """
    asked, skipped = jobs_of(folder, runs, seed)
    execution.check()
    budget = execution.budget
    count = min(len(asked), execution.jobs or cores())
    failure = None
    with _signals() as signalled, _workers(_packed(task), execution.executor, count) as workers:
        collection = _Collection(workers, deque(asked), add, progress, len(asked))
        try:
            collection.run(signalled, None if budget is None else time.monotonic() + budget)
        except ExecutorFailed as failed:
            failure = failed.error
        finally:
            collection.close()
    why = "the run was interrupted" if signalled else f"the budget of {budget or 0:g} s expired"
    if failure is not None:
        why = "the executor failed"
    return CorpusEnd(collection.left, why if collection.left else "", skipped, bool(signalled), failure)


def _packed(task: CorpusTask) -> bytes:
    """Return a task as it is sent.  Raises UsageError if it cannot be pickled."""
    try:
        return pickle.dumps(task)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UsageError(
            f"cannot send the program and its inputs to worker processes: {error}",
            hint="save the program to a file, and use its path",
        ) from error


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


@dataclass(slots=True)
class _Collection:
    """Submits jobs to workers; `add` receives the results in the order of the jobs."""

    workers: _Workers
    waiting: deque[CaseRun]
    add: Callable[[CaseResult], None]
    progress: Progress
    total: int
    running: dict[int, CaseRun] = field(default_factory=dict)
    done: dict[int, CaseResult] = field(default_factory=dict)
    next: int = 0
    """The index of the next job whose result is added."""
    finished: int = 0
    left: list[str] = field(default_factory=list)
    """The names of the cases that were not run, once the collection is closed."""

    def run(self, signalled: Sequence[int], deadline: float | None) -> None:
        """Run all jobs, or as many as the deadline allows; raises ExecutorFailed."""
        while self.finished < self.total and not signalled:
            if deadline is not None and time.monotonic() >= deadline:
                return
            self._submit()
            for result in self.workers.results(_PACE):
                self._take(result)
            self.progress(self.finished, self.total)

    def _submit(self) -> None:
        ahead = self.next + _AHEAD * self.workers.count
        while self.waiting and self.workers.has_room and self.waiting[0].index < ahead:
            job = self.waiting.popleft()
            self.running[job.index] = job
            self.workers.submit(job)

    def _take(self, result: CaseResult) -> None:
        self.finished += 1
        del self.running[result.index]
        self.done[result.index] = result
        while self.next in self.done:
            self.add(self.done.pop(self.next))
            self.next += 1

    def close(self) -> None:
        """End the work; add the finished results that are waiting, and list the rest as not run."""
        self.workers.close()
        rest = {job.index: job for job in (*self.waiting, *self.running.values())}
        self.left = [rest[index].name for index in sorted(rest)]
        for index in range(self.next, self.total):
            result = self.done.get(index) or CaseResult(index, Case(rest[index].name, NOT_RUN))
            self.add(result)
