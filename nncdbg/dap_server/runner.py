"""The thread that owns a program: it moves the program, one verb after the other."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

Task: TypeAlias = Callable[[], None]


class Runner:
    """Runs posted tasks in order on the thread that calls `run`; `run` raises what a task raises."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()

    def post(self, task: Task) -> None:
        """Run this task after those posted before; from any thread."""
        self._tasks.put(task)

    def stop(self) -> None:
        """Make `run` return after the tasks posted before."""
        self._tasks.put(None)

    def run(self) -> None:
        """Run posted tasks until `stop`."""
        while (task := self._tasks.get()) is not None:
            task()
