"""Set traps at the statements of the breakpoints, and at the goal of a forward command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.stopping.breakpoints import Breakpoint


class Traps:
    """The breakpoints of one program, and the traps for them in `codes`: every block compiled so far."""

    def __init__(self, codes: Sequence[Code]) -> None:
        self.codes = codes
        self.breakpoints: dict[int, Breakpoint] = {}
        self._places: dict[tuple[Code, int], list[tuple[Breakpoint, bool]]] = {}
        self._destination: frozenset[tuple[Code, int]] = frozenset()
        self.heeded = True
        """False while breakpoints are ignored: only the goal, a failure, a pause or the end stops."""
        self._held = False

    def at(self, frame: Frame) -> Sequence[tuple[Breakpoint, bool]]:
        """Return the breakpoints with a trap at a frame's pc, and whether it is after their statement."""
        return self._places.get((frame.code, frame.pc), ())

    def remove(self, number: int) -> None:
        """Remove a breakpoint if it exists."""
        self.breakpoints.pop(number, None)
        self.rearm()

    def lead_to(self, places: Iterable[tuple[Code, int]]) -> None:
        """Set traps at the goal of a forward command, (block, pc) each, in place of the previous goal's."""
        destination = frozenset(places)
        if destination != self._destination:
            self._destination = destination
            self.rearm()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Delay changes of breakpoints in the body, and apply them together at its end."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self.rearm()

    @contextmanager
    def heeding(self, heed: bool) -> Iterator[None]:
        """Without `heed`, remove the traps of all breakpoints in the body."""
        if heed:
            yield
            return
        self.heeded = False
        self.rearm()
        try:
            yield
        finally:
            self.heeded = True
            self.rearm()

    def rearm(self) -> None:
        """Set the traps of all enabled breakpoints and of the goal of a forward command."""
        if self._held:
            return
        places: dict[tuple[Code, int], list[tuple[Breakpoint, bool]]] = {}
        for breakpoint in self.breakpoints.values():
            if breakpoint.enabled and self.heeded:
                for code, pc, after in breakpoint.sites:
                    places.setdefault((code, pc), []).append((breakpoint, after))
        self._places = places
        wanted: dict[Code, set[int]] = {}
        for code, pc in (*places, *self._destination):
            wanted.setdefault(code, set()).add(pc)
        for code in self.codes:
            traps = wanted.get(code, set())
            if traps != code.traps:
                code.traps = traps
                code.arm()
