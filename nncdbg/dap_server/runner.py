"""The thread that owns a program: it moves the program, one verb after the other."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeAlias

Task: TypeAlias = Callable[[], None]


PACE = 0.05
"""Seconds after which a wait runs a line of Python, where a Python debugger can pause the thread."""


class Runner:
    """Runs posted tasks in order on the thread that calls `run`; `run` raises what a task raises.

    On a thread of the user, it is not `patient`: debugpy can pause the thread while it waits for a task.
    """

    def __init__(self, *, patient: bool = True) -> None:
        self._patient = patient
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()

    def post(self, task: Task) -> None:
        """Run this task after those posted before; from any thread."""
        self._tasks.put(task)

    def stop(self) -> None:
        """Make `run` return after the tasks posted before."""
        self._tasks.put(None)

    def run(self) -> None:
        """Run posted tasks until `stop`."""
        while (task := self._next()) is not None:
            task()

    def _next(self) -> Task | None:
        if self._patient:
            return self._tasks.get()
        while True:
            try:
                return self._tasks.get(timeout=PACE)
            except Empty:
                continue
