"""A run under way, as it is shown: how far it is, what it prints, and how to pause it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger
    from nncdbg.ir.records import Program


class Ticks(Protocol):
    """A moment of a run."""

    @property
    def tick(self) -> int:
        """The number of statements that have run."""
        ...


@dataclass(frozen=True, slots=True)
class Elapsed:
    """How far a run is."""

    tick: int


class RunInProgress(Protocol):
    """What the progress of a run is read from, in another thread."""

    @property
    def now(self) -> Ticks:
        """The present moment."""
        ...

    def messages(self) -> Sequence[str]:
        """Return the messages of logpoints since the last call."""
        ...

    def pause(self) -> None:
        """Pause the run within one statement."""
        ...


class RunningProgram:
    """The run of a program; `others` run with it, statement by statement."""

    def __init__(self, debugger: Debugger, *others: Debugger) -> None:
        self._debugger = debugger
        self._all = debugger, *others

    @property
    def now(self) -> Elapsed:
        return Elapsed(self._debugger.timeline.tick)

    @property
    def program(self) -> Program:
        return self._debugger.program

    @property
    def notes(self) -> list[str]:
        """Return the notes on the inputs."""
        return [*map(str, self._debugger.notes)]

    def messages(self) -> Sequence[str]:
        # The program may append messages meanwhile, in another thread.
        waiting = self._debugger.control.messages
        taken = waiting[:]
        del waiting[: len(taken)]
        return taken

    def pause(self) -> None:
        for each in self._all:
            each.pause()

    def hear(self, said: Callable[[str], None]) -> None:
        """Call `said` with each message at once, instead of keeping it."""
        for each in self._all:
            each.control.said = lambda message: said(message.text)


Around: TypeAlias = "Callable[[RunningProgram], AbstractContextManager[None]]"
"""Shows a run: what it returns is entered around the run."""
