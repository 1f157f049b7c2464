"""A bound on how long a program runs, for loops that may never end."""

from __future__ import annotations

from dataclasses import dataclass

from nncdbg.engine.errors import RunError, UsageError
from nncdbg.engine.events import Event, Iterated, Pushed
from nncdbg.engine.machine import Machine
from nncdbg.engine.timeline import Timeline


@dataclass(slots=True)
class Limit:
    """Interrupts `machine` once `count` statements have run, and after as many again.

    It looks when a loop goes round and when a block or call begins, so that statements cost
    nothing; a program that does neither ends by itself.  Replays are not counted.
    """

    count: int
    machine: Machine
    timeline: Timeline
    reached: bool = False
    _next: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"max_ops cannot be {self.count}", hint="it is 1 or more")
        self._next = self.count
        self.machine.listeners.append(self._hear)

    def _hear(self, event: Event) -> None:
        tick = self.machine.tick
        if tick >= self._next and isinstance(event, (Iterated, Pushed)) and not self.timeline.replaying:
            self.reached = True
            self._next = tick + self.count
            self.machine.interrupt()

    def taken(self) -> str | None:
        """What to say if the limit was reached since the last time; None if not."""
        if not self.reached:
            return None
        self.reached = False
        return f"after {self.machine.tick} statements it has not ended, and max-ops is {self.count}"

    def failure(self, words: str) -> RunError:
        """The error of a run that is not to go on."""
        return RunError(words, hint="a loop may never end; give more with --max-ops")
