"""Recorded findings at statements of a run, as plain records without tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from nncdbg.by_identity import ByIdentity
from nncdbg.engine.compilation.code import Statement
from nncdbg.engine.ops.causes import RECEIVED, SET_BY_HAND, Cause
from nncdbg.ir.kinds import Kind
from nncdbg.stats.summary import Summary
from nncdbg.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.engine.diagnosis.composite_op_origin import Within
    from nncdbg.engine.execution.frame import Frame

Origins: TypeAlias = "frozenset[int]"
"""Numbers of recorded findings."""

NONE: Origins = frozenset()


class Register:
    """The origins of bad values in tensors, per kind; a list has the origins of its items."""

    def __init__(self) -> None:
        self._entries: ByIdentity[dict[str, Origins]] = ByIdentity()

    def mark(self, value: Any, kind: str, origins: Origins) -> None:
        """Set the origins of a kind; no origins means none."""
        if value is None or not origins or isinstance(value, (list, tuple)):
            return
        known = self._entries.get(value)
        if known is None:
            known = {}
            self._entries.set(value, known)
        known[kind] = origins

    def origins(self, value: Any, kind: str) -> Origins:
        """Return the recorded origins of a kind in a value."""
        if isinstance(value, (list, tuple)):
            return self.union(value, kind)
        known = self._entries.get(value)
        return NONE if known is None else known.get(kind, NONE)

    def union(self, values: Iterable[Any], kind: str) -> Origins:
        """Return the origins of several values."""
        return NONE.union(*(self.origins(value, kind) for value in values))


ENTRANCE = -1
"""The pc of the inputs and constants of a program."""

MOST_VISITS = 16
"""Maximum number of separately tracked visits of one statement; later ones count with the last."""


@dataclass(frozen=True, slots=True)
class Seen:
    """An operand: its name, its type as the text spells it, and its statistics if it is a tensor."""

    name: str
    type: str | None
    stats: Summary | None


@dataclass(frozen=True, slots=True)
class StatementVisit:
    """One visit of a statement: the iterations of the enclosing loops and the calls that led there.

    Both are outermost first; `calls` are the statements that called the enclosing functions.
    """

    statement: Statement
    iteration: tuple[int, ...] = ()
    calls: tuple[Statement, ...] = ()

    @classmethod
    def of(cls, statement: Statement, frames: Sequence[Frame]) -> StatementVisit:
        """Return the visit at a stack of frames, outermost first."""
        iteration = tuple(frame.iteration for frame in frames if frame.is_loop)
        outer = [Statement(frame.code, frame.pc) for frame in frames[:-1]]
        return cls(statement, iteration, tuple(each for each in outer if _calls(each)))


def _calls(statement: Statement) -> bool:
    nodes = statement.code.nodes
    return statement.pc < len(nodes) and nodes[statement.pc].kind is Kind.CALL


@dataclass(slots=True, eq=False)
class FindingRecord:
    """A statement where a value stopped being finite, was propagated, or became finite again.

    `kind` is nan, inf, uninitialized, integer or guard; `role` is birth, propagated or healed.
    `statement` may have the pc ENTRANCE: an input or constant that was bad from the start; `used` is
    the first statement that it influences. `iteration` and `calls` (the statements that called the
    enclosing functions, outermost first) identify the visit of the statement. `parents` are the numbers
    of the records that led to this one, `roots` those of its origins in the program, its inputs and its
    constants; `count` is the number of equal records. `lost` marks a healed value without influence on
    the results of the statement.
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
    used: StatementVisit | None = None
    parents: Origins = NONE
    roots: Origins = NONE
    tick: int = 0
    reaches_output: bool = False
    lost: bool = False
    count: int = 1
    effect: str = ""
    """For an infinity that ends in finite numbers: what a wider type computes, or where it has an effect."""
    dropped: bool = False
    """Whether a mask drops this infinity in forward: the NaN that it makes in backward comes first."""

    @property
    def born(self) -> bool:
        """Whether the value originates here, in the program or in its inputs and constants."""
        return self.role == "birth" or self.statement.pc == ENTRANCE


def entrance_words(sighting: FindingRecord) -> str:
    """Return `%w has NaN before the program runs`, for a value that no statement made bad."""
    kind = {"nan": "NaN", "inf": "Inf"}[sighting.kind]
    if sighting.statement.pc != ENTRANCE:
        return f"a number in the text is {kind}"
    name = f"%{name_text(sighting.value)}" if sighting.value else "a number in the text"
    cause = sighting.cause.name if sighting.cause else ""
    return f"{name} has {kind} {_SINCE.get(cause, 'before the program runs')}"


_SINCE = {SET_BY_HAND: "since it was set", RECEIVED: "that this rank received"}


@dataclass(slots=True)
class FindingRecords:
    """The recorded findings of a run, with those to report in the order of their report."""

    reported: list[FindingRecord] = field(default_factory=list)
    _every: list[FindingRecord] = field(default_factory=list)
    _known: dict[tuple[Any, ...], list[FindingRecord]] = field(default_factory=dict)
    _withheld: set[int] = field(default_factory=set)
    _readers: dict[int, StatementVisit] = field(default_factory=dict)
    _viewed: set[int] = field(default_factory=set)
    """The records that only views use so far."""

    def __getitem__(self, number: int) -> FindingRecord:
        return self._every[number]

    def known(self, key: tuple[Any, ...]) -> FindingRecord | None:
        """Return the record that a new one with this key would be counted with; None if it would be new."""
        found = self._known.get(key, [])
        whole = key[0] != "birth" or len(found) >= MOST_VISITS
        return found[-1] if found and whole else None

    def add(self, key: tuple[Any, ...] | None, *, report: bool = True, **fields: Any) -> FindingRecord:
        """Add a record; without `report` it is reported only once `report` is called."""
        sighting = FindingRecord(len(self._every), **fields)
        self._every.append(sighting)
        if key is not None:
            self._known.setdefault(key, []).append(sighting)
        if report:
            self.reported.append(sighting)
        else:
            self._withheld.add(sighting.number)
        return sighting

    def report(self, number: int, used: StatementVisit | None = None) -> None:
        """Report a record that was held back; `used` is the statement that it influences."""
        if number in self._withheld:
            self._withheld.discard(number)
            self._every[number].used = self._readers.get(number, used)
            self.reported.append(self._every[number])

    def read(self, number: int, visit: StatementVisit, *, is_view: bool) -> None:
        """Record the first statement that reads a value held back, for its report.

        Until there is one, it is the last view of the value.
        """
        if number in self._viewed or (number in self._withheld and number not in self._readers):
            self._readers[number] = visit
            if number not in self._withheld:
                self._every[number].used = visit
            (self._viewed.add if is_view else self._viewed.discard)(number)

    def conclude(self, outputs: Origins, nearest: Origins, *, ended: bool) -> None:
        """Determine what reaches an output, then keep one record of each statement and role.

        `outputs` are the origins that an output depends on, `nearest` the records nearest to the
        outputs. If the program did not end, everything may reach an output.
        """
        handed_on = self._ancestors(nearest)
        for sighting in self.reported:
            reaching = sighting.number in outputs
            if not sighting.born:
                reaching = sighting.number in handed_on and bool(sighting.roots & outputs)
            sighting.reaches_output = not sighting.lost and (reaching or not ended)
        groups: dict[Any, list[FindingRecord]] = {id(each): [each] for each in self.reported}
        for same in self._known.values():
            for each in same[1:]:
                groups[id(same[0])] = groups.get(id(same[0]), []) + groups.pop(id(each), [])
        self.reported = [_one(group) for group in groups.values() if group]

    def _ancestors(self, numbers: Origins) -> set[int]:
        found: set[int] = set()
        pending = [*numbers]
        while pending:
            number = pending.pop()
            if number not in found:
                found.add(number)
                pending.extend(self._every[number].parents)
        return found


def _one(group: Sequence[FindingRecord]) -> FindingRecord:
    """Merge equal records into the first one that reaches an output."""
    chosen = next((each for each in group if each.reaches_output), group[0])
    return chosen if len(group) == 1 else replace(chosen, count=sum(each.count for each in group))
