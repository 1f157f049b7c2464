"""The thread that a program belongs to: it moves the program, one verb after the other."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

Task: TypeAlias = Callable[[], None]


class Runner:
    """Does what is posted, in order, on the thread that calls `run`; what a task raises, `run` raises."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()

    def post(self, task: Task) -> None:
        """Do this after what was posted before; from any thread."""
        self._tasks.put(task)

    def stop(self) -> None:
        """Let `run` return after what was posted before."""
        self._tasks.put(None)

    def run(self) -> None:
        """Do what is posted until `stop`."""
        while (task := self._tasks.get()) is not None:
            task()
