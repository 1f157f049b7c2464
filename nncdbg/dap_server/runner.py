"""The thread that owns a program: it moves the program, one verb after the other."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TypeAlias

from nncdbg.stats import prepare

Task: TypeAlias = Callable[[], None]


REST = 1.0
"""Seconds without a task, after which a person reads the screen: the statistics can be compiled meanwhile."""

PACE = 0.05
"""Seconds after which a wait runs a line of Python, where a Python debugger can pause the thread."""


class Runner:
    """Runs posted tasks in order on the thread that calls `run`; `run` raises what a task raises.

    On a thread of the user, it is not `patient`: debugpy can pause the thread while it waits for a task.
    """

    def __init__(self, *, patient: bool = True) -> None:
        self._pause = REST if patient else PACE
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()

    def post(self, task: Task) -> None:
        """Run this task after those posted before; from any thread."""
        self._tasks.put(task)

    def stop(self) -> None:
        """Make `run` return after the tasks posted before."""
        self._tasks.put(None)

    def run(self) -> None:
        """Run posted tasks until `stop`.  Starts to compile the statistics in the first rest after a task."""
        worked: float | None = None
        while True:
            try:
                task = self._tasks.get(timeout=self._pause)
            except Empty:
                if worked is not None and monotonic() - worked >= REST:
                    prepare()
                continue
            if task is None:
                return
            task()
            worked = monotonic()
