"""Cases on an executor of `concurrent.futures`; a case of a lost worker runs again.

The first loss may be the fault of another case of the same worker, so the case runs again alone.
"""

from __future__ import annotations

import pickle
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from typing import Any

from nncdbg.engine.errors import RunError
from nncdbg.nan_watch.corpus.remote import SentTask, run_case
from nncdbg.nan_watch.corpus.report import CaseResult
from nncdbg.nan_watch.corpus.worker import CaseRun, Refused, Task
from nncdbg.nan_watch.records import Case

_MOST_LOSSES = 3
"""Workers that a case may lose before it counts as crashed."""

_QUEUED = 4
"""Cases per worker that are submitted at a time, so that a worker need not wait for its next one."""

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

    def __init__(self, executor: Executor, task: Task, count: int) -> None:
        self._executor = executor
        self._sent = SentTask.of(task)
        self.count = count
        self._jobs: dict[Future[Any], CaseRun] = {}
        self._suspects: deque[CaseRun] = deque()
        """Cases of lost workers, to run again one at a time."""
        self._losses: Counter[int] = Counter()
        self.fingerprint = ""

    @property
    def has_room(self) -> bool:
        """Return whether another case can be submitted."""
        return not self._suspects and len(self._jobs) < _QUEUED * self.count and not self._alone()

    def submit(self, job: CaseRun) -> None:
        """Submit a case; raises ExecutorFailed if the executor accepts none."""
        try:
            future = self._executor.submit(run_case, self._sent, job)
        except (RuntimeError, pickle.PicklingError) as error:  # BrokenExecutor is a RuntimeError
            raise _failed("the executor accepts no cases", error) from error
        self._jobs[future] = job

    def results(self, seconds: float) -> Iterator[CaseResult]:
        """Yield the results that arrive within some seconds; raises the error that refuses all cases."""
        if self._suspects and not self._jobs:
            self.submit(self._suspects.popleft())
        done, _ = wait(self._jobs, seconds, FIRST_COMPLETED)
        failed = None
        for future in done:
            try:
                result = self._result(future, self._jobs[future])
            except ExecutorFailed as failure:
                failed = failure
                continue
            del self._jobs[future]
            if result is not None:
                yield result
        if failed is not None:
            raise failed

    def _alone(self) -> bool:
        """Return whether a case runs alone, because its last worker was lost."""
        return any(self._losses[job.index] for job in self._jobs.values())

    def _result(self, future: Future[Any], job: CaseRun) -> CaseResult | None:
        """Return the result of a case; None if the case has to run again."""
        if future.cancelled():
            raise _failed("the executor cancelled a case", None)
        error = future.exception()
        if error is None:
            outcome = future.result()
            if isinstance(outcome, Refused):
                raise outcome.error
            ready, result = outcome
            self.fingerprint = ready.fingerprint
            return result  # type: ignore[no-any-return]
        if isinstance(error, BrokenExecutor):
            raise _failed("the executor lost a worker and cannot replace it", error)
        if not _is_loss(error):
            raise _failed("a worker of the executor cannot run a case", error)
        self._losses[job.index] += 1
        if self._losses[job.index] < _MOST_LOSSES:
            self._suspects.append(job)
            return None
        why = f"the case lost its worker {_MOST_LOSSES} times ({type(error).__name__})"
        return CaseResult(job.index, Case(job.name, "crashed", error=why))

    def close(self) -> None:
        """Cancel the cases that have not started."""
        for future in self._jobs:
            future.cancel()


def _is_loss(error: BaseException) -> bool:
    return any(f"{each.__module__}.{each.__qualname__}" in _LOSSES for each in type(error).__mro__)


def _failed(what: str, error: BaseException | None) -> ExecutorFailed:
    why = "" if error is None else f": {type(error).__name__}: {error}"
    return ExecutorFailed(
        f"{what}{why}", "install the same version of nncdbg on each worker, or use --executor processes"
    )
