"""Which statements carry a trap: those of the breakpoints, and the place where a way forward is to end."""

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
        """False while only the place that was asked for, a failure, a pause and the end stop the program."""
        self._held = False

    def at(self, frame: Frame) -> Sequence[tuple[Breakpoint, bool]]:
        """The breakpoints with a trap at a frame's pc, and whether it stands behind the statement meant."""
        return self._places.get((frame.code, frame.pc), ())

    def remove(self, number: int) -> None:
        """Take one breakpoint away, if it is still there."""
        self.breakpoints.pop(number, None)
        self.rearm()

    def lead_to(self, places: Iterable[tuple[Code, int]]) -> None:
        """Set traps where the way forward is to end, (block, pc) each, in place of the last such."""
        destination = frozenset(places)
        if destination != self._destination:
            self._destination = destination
            self.rearm()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Changes of breakpoints made meanwhile take effect at the end, all at once."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self.rearm()

    @contextmanager
    def heeding(self, heed: bool) -> Iterator[None]:
        """Without `heed`, no breakpoint has a trap meanwhile."""
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
        """Set the traps of all enabled breakpoints, and of the place where a way forward is to end."""
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
