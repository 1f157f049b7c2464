"""What a report quotes of a watch: the lines of the program, and the requested gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from nncdbg.engine.graph import Program
from nncdbg.nan_watch.measuring.gates import KINDS, RANGE, Gates


class OnScreen(Protocol):
    """How a report is fitted to a screen."""

    def statement(self, text: str, line: int) -> str:
        """The statement on a line of the program in one line."""

    def words(self, text: str, line: int | None) -> str:
        """A sentence about the statement on a line of the program, with short names."""


@dataclass(frozen=True, slots=True)
class Watched:
    """The parts of a watch that its report does not hold.

    `lines` is the program's text, from which statements are quoted; `gates` are the requested gates, so
    that those that passed can be named.
    """

    lines: Sequence[str] = ()
    gates: Sequence[str] = ()
    screen: OnScreen | None = None
    """Fits lines to a screen; None where the report is written whole."""

    @classmethod
    def of(cls, program: Program, gates: Gates | None = None) -> Watched:
        """With the text of `program` in which its lines are counted."""
        lines = program.as_listing().full_lines()
        if gates is None:
            return cls(lines)
        kinds = [kind for kind in KINDS if kind in gates.kinds]
        ranges = [f"{RANGE}:{expression}" for expression in gates.ranges]
        return cls(lines, (*kinds, *map(str, gates.thresholds), *ranges))
