"""A worker process that runs cases, from the parent's side."""

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

from nncdbg.opening.corpus.cases import CaseRun
from nncdbg.process.crash_report_reader import read_box, sentence

_CODE = """
import json, sys
sys.path[:] = json.loads(sys.argv[3])
from nncdbg.opening.corpus.worker import main
main(int(sys.argv[1]), sys.argv[2])
"""

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

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


def thread_shares(others: int) -> dict[str, str]:
    """Return variables that divide the cores among the workers; the variables that the user set win."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = str(max(1, available // others))
    shares = dict.fromkeys(_THREADS, share) if others > 1 else {}
    return {**shares, **{name: os.environ[name] for name in _THREADS if name in os.environ}}
