"""Cases in processes of nncdbg: a crashing process loses only its own case, and is replaced."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import wait

from nncdbg.engine.errors import RunError
from nncdbg.opening.corpus.cases import CRASHED, Case, CaseResult, CaseRun
from nncdbg.opening.corpus.process import Process
from nncdbg.opening.corpus.worker import Ready, Refused


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
        for ready in wait([process.connection for process in self._processes], seconds):
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
