"""The debuggers that a script moves itself: they stop for a user, and the script's own call continues."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from nncdbg.engine.debugger import Debugger
from nncdbg.engine.stopping.stops import Stop
from nncdbg.engine.stopping.supervision import PROCESS, Verb
from nncdbg.target.program import ProgramTarget


class ScriptMove:
    """A move of a program that the code of a script makes, on the thread of the script."""

    def __init__(self, debugger: Debugger, verb: Verb) -> None:
        self._debugger, self._verb = debugger, verb
        self.target = ProgramTarget(debugger)

    def pause_first(self) -> None:
        """Take the next statement, before the move, as a stop of the program."""
        debugger = self._debugger
        debugger.stop = debugger.control.here("pause")

    def run(self, concerns: Callable[[], bool], hold: Callable[[], bool]) -> None:
        """Make the move; at each stop that `concerns` the user, call `hold`, then continue the move.

        `hold` returns whether the script receives the stop at which the program then is.
        """
        debugger = self._debugger
        debugger.stop = self._verb()
        while concerns():
            rest = debugger.control.journey
            if hold() or rest is None:
                break
            debugger.move(debugger.control.proceed, rest)


def supervise(make: Callable[[ScriptMove], None] | None) -> None:
    """Let `make` make the moves of the debuggers of this process; None ends this."""

    def supervisor(debugger: Debugger, verb: Verb) -> Stop:
        assert make is not None
        make(ScriptMove(debugger, verb))
        return debugger.stop

    PROCESS.supervisor = supervisor if make is not None else None


@dataclass(frozen=True, slots=True)
class _Set:
    """Breakpoint numbers and catch kinds that were set at the prompt, for one debugger."""

    numbers: set[int] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)


class ScriptSupervision:
    """Stops the debuggers that a script moves (see `Supervision`), also at what was set at a stop.

    `hold` is called at each such stop, and returns when the script continues; `moved` is called after a move
    of the debugger that was held last.
    """

    def __init__(self, hold: Callable[[ProgramTarget], None], moved: Callable[[ProgramTarget], None]) -> None:
        self._hold_target, self._moved = hold, moved
        self._due: dict[int, str] = {}
        """Maps threads to the pending call of `breakpoint`, for which the next stop is made."""
        self._under: set[int] = set()
        """Threads inside a verb of a debugger, including moves by the prompt itself."""
        self._sets: WeakKeyDictionary[Debugger, _Set] = WeakKeyDictionary()
        self._held: tuple[Debugger, ProgramTarget] | None = None
        """The debugger that was held last."""

    def begin(self) -> None:
        """Supervise the debuggers of this process."""
        PROCESS.supervisor = self._supervise

    def break_here(self, words: str) -> None:
        """Stop before the next statement that this thread runs."""
        self._due[threading.get_ident()] = words
        moving = PROCESS.moving()
        if moving is not None:
            moving.pause()

    def unreached(self) -> list[str]:
        """Return the calls of `breakpoint` after which no graph ran."""
        return [*self._due.values()]

    def _supervise(self, debugger: Debugger, verb: Verb) -> Stop:
        """Move a debugger, and hold it if a stop is due."""
        thread = threading.get_ident()
        if thread in self._under or PROCESS.moving() is not debugger:
            # A prompt command, or a kernel of another debugger, moves this one.
            return verb()
        self._under.add(thread)
        try:
            return self._supervised(debugger, verb)
        finally:
            self._under.discard(thread)

    def _supervised(self, debugger: Debugger, verb: Verb) -> Stop:
        # The verb is already running: a kernel called `breakpoint`.
        if threading.get_ident() in self._due and debugger.control.journey is None:
            self._hold(debugger, debugger.control.here("pause"))
            if debugger.ended:
                return debugger.stop

        def hold() -> bool:
            branch = debugger.timeline.branch
            self._hold(debugger, debugger.stop)
            stop = debugger.stop
            failed = stop.error is not None and debugger.timeline.branch == branch
            return failed or self._is_of_script(debugger, stop)

        ScriptMove(debugger, verb).run(lambda: self._concerns(debugger, debugger.stop), hold)
        if self._held is not None and self._held[0] is debugger:
            self._moved(self._held[1])
        return debugger.stop

    def _concerns(self, debugger: Debugger, stop: Stop) -> bool:
        """Return True if the debugger is held at a stop."""
        if stop.reason == "end":
            return False
        if threading.get_ident() in self._due:
            return True
        mine = self._sets.get(debugger)
        if mine is None:
            return False
        caught = stop.finding is not None and stop.finding.kind in mine.kinds
        return caught or stop.error is not None or bool(mine.numbers & {*stop.breakpoints})

    def _is_of_script(self, debugger: Debugger, stop: Stop) -> bool:
        """Return True if the script must receive a stop: the end, or one that it set itself."""
        mine = self._sets[debugger]
        caught = stop.finding is not None and stop.finding.kind not in mine.kinds
        return stop.reason == "end" or caught or bool({*stop.breakpoints} - mine.numbers)

    def _hold(self, debugger: Debugger, stop: Stop) -> None:
        """Hold a debugger at a stop; what is set meanwhile stops it again."""
        words = self._due.pop(threading.get_ident(), None)
        if words is not None:
            stop = replace(stop, detail="; ".join(filter(None, (words, stop.detail))))
        debugger.stop, debugger.selected = stop, -1
        debugger.control.forget_pause()
        if self._held is None or self._held[0] is not debugger:
            self._held = debugger, ProgramTarget(debugger)
        mine = self._sets.setdefault(debugger, _Set())
        numbers, kinds = _set_in(debugger)
        try:
            self._hold_target(self._held[1])
        finally:
            now = _set_in(debugger)
            mine.numbers.update(now[0] - numbers)
            mine.kinds.update(now[1] - kinds)


def _set_in(debugger: Debugger) -> tuple[set[int], set[str]]:
    """Return the numbers of the breakpoints of a debugger, and the kinds that it catches."""
    return {each.number for each in debugger.breakpoints}, {*debugger.observers.catches.conditions}
