"""What was seen at one statement of a run, as plain records that hold no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nncdbg.engine.code import Statement
from nncdbg.engine.diagnosis.cause import Cause
from nncdbg.stats.summary import Summary

if TYPE_CHECKING:
    from nncdbg.engine.diagnosis.within import Within

ENTRANCE = -1
"""The pc of what a program was given: its inputs and constants."""


@dataclass(frozen=True, slots=True)
class Seen:
    """An operand as it was: its name, its type as the text spells it, its statistics if it is a tensor."""

    name: str
    type: str | None
    stats: Summary | None


@dataclass(slots=True, eq=False)
class Sighting:
    """A statement at which a value stopped being a number, was handed on, or became one again.

    `kind` is nan, inf, uninitialized, integer or guard; `role` birth, propagated or healed.  `statement` may
    have the pc ENTRANCE: an input or constant that was bad from the start.  `parents` are the numbers of the
    sightings that led to this one; `count` says how often the same was seen.
    """

    number: int
    kind: str
    role: str
    statement: Statement
    value: str
    iteration: tuple[int, ...] = ()
    operands: tuple[Seen, ...] = ()
    stats: Summary | None = None
    cause: Cause | None = None
    within: Within | None = None
    other: Statement | None = None
    parents: frozenset[int] = frozenset()
    tick: int = 0
    reaches_output: bool = False
    count: int = 1

    @property
    def born(self) -> bool:
        """Whether the trouble began here, in the program or in what it was given."""
        return self.role == "birth" or self.statement.pc == ENTRANCE
