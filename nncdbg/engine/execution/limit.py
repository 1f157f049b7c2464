"""A bound on how long a program runs, for loops that may never end."""

from __future__ import annotations

from dataclasses import dataclass

from nncdbg.engine.errors import RunError, UsageError
from nncdbg.engine.execution.machine import Machine


@dataclass(slots=True)
class Limit:
    """Stops `machine` once `count` statements have run, and after as many again.

    The end of the entry graph is free: a program of `count` statements ends.  Going to another
    moment begins a new count.
    """

    count: int
    machine: Machine

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"max_ops cannot be {self.count}", hint="use 1 or more")
        self.renew()

    def renew(self) -> None:
        """Count from this moment on."""
        self.machine.bound = self.machine.tick + self.count

    def taken(self) -> str | None:
        """What to say if the limit was reached since the last time; None if not."""
        if not self.machine.bounded:
            return None
        self.renew()
        return f"the program has not ended after {self.machine.tick} statements (max-ops {self.count})"

    def failure(self, words: str) -> RunError:
        """The error of a run that is not to go on."""
        return RunError(words, hint="check the program for an endless loop, or raise --max-ops")
