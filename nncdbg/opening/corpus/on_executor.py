"""Cases on an executor of `concurrent.futures`; a case of a lost worker runs again.

Fast cases run in batches.  The first loss may be the fault of another case of the same worker, so the case
runs again alone.
"""

from __future__ import annotations

import pickle
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from typing import Any

from nncdbg.engine.errors import RunError
from nncdbg.opening.corpus.cases import CRASHED, Case, CaseResult, CaseRun
from nncdbg.opening.corpus.remote import SentTask, TaskMissing, run_batch
from nncdbg.opening.corpus.worker import Refused

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
        if self._suspects or self._alone():
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

    def _alone(self) -> bool:
        """Return whether a case runs alone, because its last worker was lost."""
        return any(self._losses[job.index] for jobs in self._batches.values() for job in jobs)

    def _results(self, future: Future[Any], jobs: Sequence[CaseRun]) -> Sequence[CaseResult]:
        """Return the results of a batch, without those of cases that have to run again."""
        if future.cancelled():
            raise _failed("the executor cancelled a case", None)
        error = future.exception()
        if error is None:
            return self._returned(future.result(), jobs)
        if isinstance(error, BrokenExecutor):
            raise _failed("the executor lost a worker and cannot replace it", error)
        if not _is_loss(error):
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


def _is_loss(error: BaseException) -> bool:
    return any(f"{each.__module__}.{each.__qualname__}" in _LOSSES for each in type(error).__mro__)


def _failed(what: str, error: BaseException | None) -> ExecutorFailed:
    why = "" if error is None else f": {type(error).__name__}: {error}"
    return ExecutorFailed(
        f"{what}{why}", "install the same version of nncdbg on each worker, or use --executor processes"
    )
