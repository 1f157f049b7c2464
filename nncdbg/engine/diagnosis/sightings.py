"""What was seen at one statement of a run, as plain records that hold no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nncdbg.engine.compilation.code import Statement
from nncdbg.engine.diagnosis.register import NONE, Origins
from nncdbg.engine.ops.causes import Cause
from nncdbg.stats.summary import Summary

if TYPE_CHECKING:
    from nncdbg.engine.diagnosis.within import Within
    from nncdbg.engine.execution.frame import Frame

ENTRANCE = -1
"""The pc of what a program was given: its inputs and constants."""

MOST_VISITS = 16
"""Visits of one statement whose births are followed apart; later ones are counted with the last."""


@dataclass(frozen=True, slots=True)
class Seen:
    """An operand as it was: its name, its type as the text spells it, its statistics if it is a tensor."""

    name: str
    type: str | None
    stats: Summary | None


@dataclass(frozen=True, slots=True)
class Visit:
    """One visit of a statement: the iterations of the loops around it and the calls that led there.

    Both are outermost first; `calls` are the statements that called the functions around it.
    """

    statement: Statement
    iteration: tuple[int, ...] = ()
    calls: tuple[Statement, ...] = ()

    @classmethod
    def of(cls, statement: Statement, frames: Sequence[Frame]) -> Visit:
        """The visit that a stack of frames, outermost first, is at."""
        iteration = tuple(frame.iteration for frame in frames if frame.is_loop)
        outer = [Statement(frame.code, frame.pc) for frame in frames[:-1]]
        return cls(statement, iteration, tuple(each for each in outer if _calls(each)))


def _calls(statement: Statement) -> bool:
    nodes = statement.code.nodes
    return statement.pc < len(nodes) and nodes[statement.pc].op.startswith("@")


@dataclass(slots=True, eq=False)
class Sighting:
    """A statement where a value stopped being finite, was handed on, or became finite again.

    `kind` is nan, inf, uninitialized, integer or guard; `role` birth, propagated or healed.  `statement`
    may have the pc ENTRANCE: an input or constant that was bad from the start; `used` is the first
    statement that it influences.  `iteration` and `calls` (the statements that called the functions around
    it, outermost first) say which visit of the statement it was.  `parents` are the numbers of the
    sightings that led to this one, `roots` those of the births and entrances behind it; `count` says how
    often the same was seen.  `lost` marks a healed value without influence on the results of the statement.
    """

    number: int
    kind: str
    role: str
    statement: Statement
    value: str
    iteration: tuple[int, ...] = ()
    calls: tuple[Statement, ...] = ()
    operands: tuple[Seen, ...] = ()
    stats: Summary | None = None
    cause: Cause | None = None
    within: Within | None = None
    other: Statement | None = None
    used: Visit | None = None
    parents: Origins = NONE
    roots: Origins = NONE
    tick: int = 0
    reaches_output: bool = False
    lost: bool = False
    count: int = 1

    @property
    def born(self) -> bool:
        """Whether the trouble began here, in the program or in what it was given."""
        return self.role == "birth" or self.statement.pc == ENTRANCE


@dataclass(slots=True)
class Sightings:
    """The sightings of a run.  `told` are those to report, in the order of their report."""

    told: list[Sighting] = field(default_factory=list)
    _every: list[Sighting] = field(default_factory=list)
    _known: dict[tuple[Any, ...], list[Sighting]] = field(default_factory=dict)
    _untold: set[int] = field(default_factory=set)

    def __getitem__(self, number: int) -> Sighting:
        return self._every[number]

    def known(self, key: tuple[Any, ...]) -> Sighting | None:
        """The sighting with which another one of this key would be counted; None where it is a new one."""
        found = self._known.get(key, [])
        whole = key[0] != "birth" or len(found) >= MOST_VISITS
        return found[-1] if found and whole else None

    def add(self, key: tuple[Any, ...] | None, *, tell: bool = True, **fields: Any) -> Sighting:
        """A new sighting; without `tell` it is reported only once `tell` is called."""
        sighting = Sighting(len(self._every), **fields)
        self._every.append(sighting)
        if key is not None:
            self._known.setdefault(key, []).append(sighting)
        if tell:
            self.told.append(sighting)
        else:
            self._untold.add(sighting.number)
        return sighting

    def tell(self, number: int, used: Visit | None = None) -> None:
        """Report a sighting that was held back; `used` is the statement that it influences."""
        if number in self._untold:
            self._untold.discard(number)
            self._every[number].used = used
            self.told.append(self._every[number])

    def conclude(self, outputs: Origins, nearest: Origins, *, ended: bool) -> None:
        """Decide what reaches an output, then keep one sighting of each statement and role.

        `outputs` are the births and entrances that an output depends on, `nearest` the sightings nearest to
        the outputs.  Where the program did not end, everything may reach one.
        """
        handed_on = self._ancestors(nearest)
        for sighting in self.told:
            reaching = sighting.number in outputs
            if not sighting.born:
                reaching = sighting.number in handed_on and bool(sighting.roots & outputs)
            sighting.reaches_output = not sighting.lost and (reaching or not ended)
        groups: dict[Any, list[Sighting]] = {id(each): [each] for each in self.told}
        for same in self._known.values():
            for each in same[1:]:
                groups[id(same[0])] = groups.get(id(same[0]), []) + groups.pop(id(each), [])
        self.told = [_one(group) for group in groups.values() if group]

    def _ancestors(self, numbers: Origins) -> set[int]:
        found: set[int] = set()
        pending = [*numbers]
        while pending:
            number = pending.pop()
            if number not in found:
                found.add(number)
                pending.extend(self._every[number].parents)
        return found


def _one(group: Sequence[Sighting]) -> Sighting:
    """The first visit that reaches an output stands for all of them."""
    chosen = next((each for each in group if each.reaches_output), group[0])
    return chosen if len(group) == 1 else replace(chosen, count=sum(each.count for each in group))
