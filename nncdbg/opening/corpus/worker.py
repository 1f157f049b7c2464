"""A process that runs one case after the other; it opens the task once, a crash loses one case.

It receives jobs and sends results over one connection; the output of kernels goes to standard error.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import tempfile
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from nncdbg.errors import LoadError, NncdbgError
from nncdbg.opening.corpus.cases import FAILED, Case, CaseResult, CaseRun
from nncdbg.stats import prepare


class OpenedTask(Protocol):
    """A task in a worker: its program is loaded."""

    def run(self, job: CaseRun, boxes: Path | None) -> CaseResult:
        """Run a case; `boxes` is the folder for black boxes.

        Raises UnusableInputs, or an NncdbgError that affects every case.
        """


class CorpusTask(Protocol):
    """What all cases share.  Workers receive it pickled."""

    def open(self) -> OpenedTask:
        """Load the program; raises the errors that affect every case."""


class UnusableInputs(Exception):
    """The inputs of a case cannot be read, or do not fit the program."""

    def __init__(self, status: str, error: NncdbgError) -> None:
        super().__init__(str(error))
        self.status = status


@contextmanager
def reading_inputs() -> Iterator[None]:
    """Raise UnusableInputs for an error from the body, which reads the inputs of a case."""
    try:
        yield
    except LoadError as error:
        raise UnusableInputs("unreadable", error) from error
    except NncdbgError as error:
        raise UnusableInputs("unfit", error) from error


@dataclass(frozen=True, slots=True)
class Ready:
    """The task is open."""


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
    try:
        task: CorpusTask = pickle.loads(connection.recv())
        opened = task.open()
    except NncdbgError as error:
        connection.send(Refused(error))
        return
    prepare(wait=True)
    # All current objects live until the end: exclude them from garbage collection after each case.
    gc.collect()
    gc.freeze()
    connection.send(Ready())
    while (job := connection.recv()) is not None:
        connection.send(finished_case(opened, job, boxes))
        gc.collect()


def finished_case(opened: OpenedTask, job: CaseRun, boxes: Path | None = None) -> CaseResult | Refused:
    """Run a case and return its result; `boxes` is the folder for black boxes."""
    try:
        return opened.run(job, boxes)
    except UnusableInputs as error:
        return CaseResult(job.index, Case(job.name, error.status, error=str(error)))
    except MemoryError:
        return CaseResult(job.index, Case(job.name, FAILED, error="out of memory"))
    except NncdbgError as error:
        return Refused(error)


# -- workers of executors --------------------------------------------------------------------------
# The function that a worker of an executor runs: it runs a few cases.
#
# A worker receives and opens a task once: the caller sends the task again if a worker lacks it.


@dataclass(frozen=True, slots=True)
class SentTask:
    """A task as workers receive it; `key` identifies the run of the corpus, `caller` its process.

    Relative paths of the task start at `folder`.  `task` is None for workers that have it.
    """

    key: str
    caller: tuple[str, int]
    folder: str
    task: bytes | None

    @classmethod
    def of(cls, task: bytes) -> SentTask:
        """Return the task of a new run of this process."""
        return cls(uuid.uuid4().hex, _this_process(), os.getcwd(), task)

    @property
    def reference(self) -> SentTask:
        """Return the task without its content, for workers that have it."""
        return replace(self, task=None)


@dataclass(frozen=True, slots=True)
class TaskMissing:
    """This worker does not have the task."""


_ONE = threading.Lock()
"""Held while a case runs: a worker with several threads runs one case at a time."""


@dataclass(frozen=True, slots=True)
class _Held:
    """The task that this process has.

    The folder for black boxes is its own: a note on a crash would blame the next case of another worker.
    """

    key: str
    task: OpenedTask
    boxes: tempfile.TemporaryDirectory[str]


_held: _Held | None = None


def run_batch(sent: SentTask, jobs: Sequence[CaseRun]) -> list[CaseResult] | Refused | TaskMissing:
    """Return the results of cases, or the error that affects every case."""
    with _ONE, chdir(sent.folder):
        held = _held
        if held is None or held.key != sent.key:
            if sent.task is None:
                return TaskMissing()
            try:
                held = _open(sent, sent.task)
            except NncdbgError as error:
                return Refused(error)
        boxes = Path(held.boxes.name)
        results = []
        for job in jobs:
            result = finished_case(held.task, job, boxes)
            gc.collect()
            if isinstance(result, Refused):
                return result
            results.append(result)
        return results


def _open(sent: SentTask, content: bytes) -> _Held:
    """Open a task in place of an earlier one."""
    global _held
    _held = None
    own = sent.caller != _this_process()
    if own:
        gc.unfreeze()
    task: CorpusTask = pickle.loads(content)
    opened = task.open()
    prepare(wait=True)
    gc.collect()
    if own:
        # The program lives until the next task: exclude it from garbage collection after each case.
        gc.freeze()
    _held = _Held(sent.key, opened, tempfile.TemporaryDirectory(prefix="nncdbg-corpus-"))
    return _held


def _this_process() -> tuple[str, int]:
    return socket.gethostname(), os.getpid()
