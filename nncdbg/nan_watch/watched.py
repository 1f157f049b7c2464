"""The context that a report quotes: the lines of the program, and the requested gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nncdbg.ir.records import Program, SourceLines
from nncdbg.nan_watch.measuring.gates import KINDS, RANGE, Gates


class OnScreen(Protocol):
    """Fits the lines of a report to a screen."""

    def statement(self, text: str) -> str:
        """Return a statement of the program, shortened to one line."""


@dataclass(frozen=True, slots=True)
class Watched:
    """The parts of a watch that are not in its report.

    `lines` is the program's text, from which statements are quoted; `gates` are the requested gates, so
    that reports can name those that passed.
    """

    lines: Sequence[str] = ()
    gates: Sequence[str] = ()
    screen: OnScreen | None = None
    """Fits lines to a screen; None for complete lines."""
    unicode: bool = True
    """Whether the output can have characters beyond ASCII, such as bars."""
    sources: Mapping[str, SourceLines] = field(default_factory=dict)
    """The user's lines that a recorded step has."""

    @classmethod
    def of(cls, program: Program, gates: Gates | None = None) -> Watched:
        """Return the context of a program: its text with numbered lines, and its gates."""
        lines = program.as_listing().full_lines()
        if gates is None:
            return cls(lines, sources=program.saved.sources)
        kinds = [kind for kind in KINDS if kind in gates.kinds]
        ranges = [f"{RANGE}:{expression}" for expression in gates.ranges]
        shown = (*kinds, *map(str, gates.thresholds), *ranges)
        return cls(lines, shown, sources=program.saved.sources)
