"""The function that a worker of an executor runs: it runs a few cases.

A worker receives and opens a task once: the caller sends the task again if a worker lacks it.
"""

from __future__ import annotations

import gc
import os
import pickle
import socket
import tempfile
import threading
import uuid
from collections.abc import Sequence
from contextlib import chdir
from dataclasses import dataclass, replace
from pathlib import Path

from nncdbg.engine.errors import NncdbgError
from nncdbg.opening.corpus.cases import CaseResult, CaseRun
from nncdbg.opening.corpus.worker import CorpusTask, OpenedTask, Refused, finished_case
from nncdbg.stats import prepare


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
