"""A limit on the number of executed statements, for loops that may never end."""

from __future__ import annotations

from dataclasses import dataclass

from nncdbg.engine.execution.machine import Machine
from nncdbg.errors import RunError, UsageError
from nncdbg.text.counting import counted


@dataclass(slots=True)
class Limit:
    """Stops `machine` after every `count` statements.

    The end of the entry graph is not counted: a program of `count` statements ends normally.  A move to
    another moment resets the count.
    """

    count: int
    machine: Machine

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"max_ops cannot be {self.count}", hint="use 1 or more")
        self.renew()

    def renew(self) -> None:
        """Restart the count at this moment."""
        self.machine.bound = self.machine.tick + self.count

    def taken(self) -> str | None:
        """Return the message if the limit was reached since the last call, otherwise None."""
        if not self.machine.bounded:
            return None
        self.renew()
        executed = counted(self.machine.tick, "statement")
        return f"the program has not ended after {executed} (max-ops {self.count})"

    def failure(self, words: str) -> RunError:
        """Return the error of a run that the limit ends."""
        return RunError(words, hint="check the program for an endless loop, or raise --max-ops")
