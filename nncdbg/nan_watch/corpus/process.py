"""A process that runs cases, as the one that asks for them sees it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

from nncdbg.engine.process.last_words import read_box, sentence
from nncdbg.nan_watch.corpus.worker import Job, Task

_CODE = """
import json, sys
sys.path[:] = json.loads(sys.argv[3])
from nncdbg.nan_watch.corpus.worker import main
main(int(sys.argv[1]), sys.argv[2])
"""

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

_PATIENCE = 2.0
"""Seconds that a process has to leave by itself."""


class Process:
    """A fresh interpreter, never a fork, which would copy the locks of threads that it does not have.

    `others` is how many such processes share the cores.
    """

    def __init__(self, task: Task, boxes: str, others: int) -> None:
        self.job: Job | None = None
        self.ready = False
        self._boxes = Path(tempfile.mkdtemp(dir=boxes))
        self.connection, far = Pipe()
        paths = [path or os.getcwd() for path in sys.path]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CODE, str(far.fileno()), str(self._boxes), json.dumps(paths)],
            stdin=subprocess.DEVNULL,
            pass_fds=[far.fileno()],
            env=_environment(others),
        )
        far.close()
        self._send(task)

    def begin(self, job: Job) -> None:
        """Have a job done."""
        self.job = job
        self._send(job)

    def receive(self) -> Any:
        """What it says; None if it is gone."""
        try:
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            return None

    def _send(self, message: Any) -> None:
        try:
            self.connection.send(message)
        except (BrokenPipeError, ConnectionResetError):
            return  # It is gone, as `receive` will find; its job is lost with it.

    def lost(self) -> str:
        """How a process ended that is gone: `was ended by SIGSEGV`."""
        self._await_end()
        return _ending(self._process.returncode) + self._inside()

    def stop(self) -> None:
        """End it, by force where it has work."""
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
        """The kernel that was running, if it was not one of ours."""
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


def _environment(others: int) -> dict[str, str]:
    """This process's, with the cores shared among the processes as far as the user has not said how."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = str(max(1, available // others))
    return {**dict.fromkeys(_THREADS, share), **os.environ} if others > 1 else dict(os.environ)
