"""Move the debuggers of a script directly, or through an editor or a prompt."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any, TypeAlias

from nncdbg.engine.stopping.stops import Stop

Verb: TypeAlias = "Callable[[], Stop]"
"""A command that moves a program, with its arguments bound."""

Supervisor: TypeAlias = "Callable[[Any, Verb], Stop]"
"""Moves a debugger by a verb of the user's code, and returns the stop that the code receives."""


class Supervision:
    """The debuggers that share one supervisor, including those made later."""

    def __init__(self) -> None:
        self.supervisor: Supervisor | None = None
        self._moving: dict[int, Any] = {}

    def __repr__(self) -> str:
        supervisor = "none" if self.supervisor is None else self.supervisor.__qualname__
        return f"<Supervision; supervisor: {supervisor}, {len(self._moving)} debuggers move>"

    def moving(self) -> Any | None:
        """Return the debugger that this thread moves; the outermost one if a kernel moves another."""
        return self._moving.get(get_ident())

    def move(self, debugger: Any, verb: Verb) -> Stop:
        """Move a debugger by a verb, through the supervisor if there is one."""
        thread = get_ident()
        nested = thread in self._moving
        if not nested:
            self._moving[thread] = debugger
        try:
            if self.supervisor is not None:
                return self.supervisor(debugger, verb)
            stop = verb()
            # If a kernel called `nncdbg.breakpoint`, its prompt is due at this stop.
            return stop if self.supervisor is None else self.supervisor(debugger, lambda: stop)
        finally:
            if not nested:
                del self._moving[thread]


PROCESS = Supervision()
"""The default supervision of every debugger."""
