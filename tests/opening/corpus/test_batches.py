"""Batches of cases on an executor: when the task is sent, how large batches are, and what a loss repeats."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nncdbg.errors import NncdbgError, UsageError
from nncdbg.opening.corpus.cases import Case, CaseResult, CaseRun
from nncdbg.opening.corpus.running import ExecutorCases
from nncdbg.opening.corpus.worker import Refused, SentTask, TaskMissing, run_batch


@dataclass(frozen=True)
class Sleepless:
    """A task whose cases take `seconds`, as they say."""

    seconds: float = 0.001

    def open(self) -> Sleepless:
        return self

    def run(self, job: CaseRun, boxes: Path | None) -> CaseResult:
        if job.name == "refused":
            raise UsageError("no gate", hint="name one")
        return CaseResult(job.index, Case(job.name, "ok", seconds=self.seconds))


class WorkerCrashedError(Exception):
    """The exception of Ray, by its name."""


WorkerCrashedError.__module__ = "ray.exceptions"


@dataclass
class Recorder(Executor):
    """An executor in this process that records batches; `lost` are names of cases that end a worker once."""

    lost: set[str] = field(default_factory=set)
    batches: list[tuple[bool, list[str]]] = field(default_factory=list)
    """Whether the task was sent, and the names of the cases."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        sent, jobs = arguments
        names = [job.name for job in jobs]
        self.batches.append((sent.task is not None, names))
        future: Future[Any] = Future()
        if found := self.lost.intersection(names):
            self.lost -= found
            future.set_exception(WorkerCrashedError())
        else:
            future.set_result(function(sent, jobs))
        return future


def runs(count: int) -> list[CaseRun]:
    return [CaseRun(index, f"{index}", None, 0) for index in range(count)]


def finished(recorder: Recorder, task: Any, jobs: Sequence[CaseRun], workers: int = 1) -> list[CaseResult]:
    """Run jobs to their end; return the results by index."""
    cases = ExecutorCases(recorder, pickle.dumps(task), workers)
    waiting, results = [*jobs], list[CaseResult]()
    while len(results) < len(jobs):
        while waiting and cases.has_room:
            cases.submit(waiting.pop(0))
        results += cases.results(1)
    return sorted(results, key=lambda result: result.index)


def test_a_worker_without_the_task_says_so() -> None:
    sent = SentTask.of(pickle.dumps(Sleepless()))
    assert run_batch(sent.reference, runs(1)) == TaskMissing()
    outcome = run_batch(sent, runs(2))
    assert isinstance(outcome, list)
    assert [result.case.name for result in outcome] == ["0", "1"]
    assert isinstance(run_batch(sent.reference, runs(1)), list)
    other = SentTask.of(pickle.dumps(Sleepless()))
    assert run_batch(other.reference, runs(1)) == TaskMissing()


def test_the_task_is_sent_once_and_batches_of_fast_cases_grow() -> None:
    recorder = Recorder()
    assert len(finished(recorder, Sleepless(), runs(100))) == 100
    assert [sent for sent, _ in recorder.batches].count(True) == 1
    sizes = [len(names) for _, names in recorder.batches]
    assert sizes[0] == 1
    assert max(sizes) == 16
    assert len(sizes) < 20


@pytest.mark.parametrize(("seconds", "largest"), [(0.5, 1), (0.04, 2), (0.01, 10)])
def test_a_batch_of_slow_cases_has_few(seconds: float, largest: int) -> None:
    recorder = Recorder()
    finished(recorder, Sleepless(seconds), runs(60))
    assert max(len(names) for _, names in recorder.batches) == largest


def test_a_lost_batch_runs_again_case_by_case() -> None:
    recorder = Recorder({"40"})
    results = finished(recorder, Sleepless(), runs(60))
    assert [result.case.status for result in results] == ["ok"] * 60
    lost = next(names for _, names in recorder.batches if "40" in names)
    assert len(lost) > 1
    assert all((False, [name]) in recorder.batches for name in lost)


def test_an_error_of_every_case_refuses_the_corpus() -> None:
    sent = SentTask.of(pickle.dumps(Sleepless()))
    outcome = run_batch(sent, [CaseRun(0, "refused", None, 0)])
    assert isinstance(outcome, Refused)
    with pytest.raises(NncdbgError, match="no gate"):
        finished(Recorder(), Sleepless(), [CaseRun(0, "refused", None, 0)])
