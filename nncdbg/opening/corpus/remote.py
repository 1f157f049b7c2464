"""The function that a worker of an executor runs: it watches one case.

A worker loads the program once per watch.
"""

from __future__ import annotations

import gc
import os
import pickle
import socket
import threading
import uuid
from contextlib import chdir
from dataclasses import dataclass

from nncdbg.engine.errors import NncdbgError
from nncdbg.nan_watch.baselines.recording import fingerprint
from nncdbg.nan_watch.corpus.report import CaseResult
from nncdbg.nan_watch.corpus.worker import CaseRun, Ready, Refused, Task, finished_case, opened_for
from nncdbg.opening.programs import OpenedProgram
from nncdbg.stats import prepare


@dataclass(frozen=True, slots=True)
class SentTask:
    """A task as workers receive it; `key` identifies the watch, `caller` its process.

    Relative paths of the task start at `folder`.
    """

    key: str
    caller: tuple[str, int]
    folder: str
    task: bytes

    @classmethod
    def of(cls, task: Task) -> SentTask:
        """Return the task of a new watch of this process."""
        return cls(uuid.uuid4().hex, _this_process(), os.getcwd(), pickle.dumps(task))


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The program of a watch in this process."""

    key: str
    task: Task
    opened: OpenedProgram
    ready: Ready


_ONE = threading.Lock()
"""Held while a case runs: a worker with several threads runs one case at a time."""

_loaded: _Loaded | None = None


def run_case(sent: SentTask, job: CaseRun) -> tuple[Ready, CaseResult] | Refused:
    """Return the result of a case, or the error that affects every case."""
    with _ONE, chdir(sent.folder):
        try:
            loaded = _loaded if _loaded is not None and _loaded.key == sent.key else _load(sent)
        except NncdbgError as error:
            return Refused(error)
        result = finished_case(loaded.opened, loaded.task, job)
        gc.collect()
        return result if isinstance(result, Refused) else (loaded.ready, result)


def _load(sent: SentTask) -> _Loaded:
    """Load the program of a watch in place of that of an earlier watch."""
    global _loaded
    _loaded = None
    own = sent.caller != _this_process()
    if own:
        gc.unfreeze()
    task: Task = pickle.loads(sent.task)
    opened = opened_for(task)
    prepare(wait=True)
    gc.collect()
    if own:
        # The program lives until the next watch: exclude it from garbage collection after each case.
        gc.freeze()
    _loaded = _Loaded(sent.key, task, opened, Ready(fingerprint(opened.program)))
    return _loaded


def _this_process() -> tuple[str, int]:
    return socket.gethostname(), os.getpid()
