"""Races: accesses to the same bytes, at least one a write, by launches that no chain of events orders.

The search is that of FastTrack (C. Flanagan and S. Freund, PLDI 2009): an access is compared with those that
may still be unordered with a later one, so that a schedule without races takes linear time.  If the bytes
have a race, all their pairs are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nncdbg.engine.schedules.launches import HOST, Access, Launch, Memory
from nncdbg.engine.schedules.ordering import Ordering

MOST_COMPARED = 3000
"""The number of accesses to the same bytes of which all pairs are compared; those beyond it are left out."""


@dataclass(frozen=True, slots=True)
class MissingEdge:
    """The smallest change that orders two launches: `waiter` waits for an event recorded after `recorder`.

    `event` is one that is recorded late enough already; with None, a new one is needed.
    """

    recorder: int
    waiter: int
    event: int | None


@dataclass(frozen=True, slots=True)
class Race:
    """Two unordered accesses, by the positions of their launches; `first` is issued first."""

    first: int
    second: int
    a: Access
    b: Access

    @property
    def kind(self) -> str:
        """`write-read` if the second launch may read before the first has written; also the other pairs."""
        return "-".join("write" if each.writes else "read" for each in (self.a, self.b))

    @property
    def cause(self) -> str:
        """What the bytes are: `workspace`, `free`, `reuse` (of the bytes of another value) or `value`."""
        if self.a.memory.kind == "workspace":
            return "workspace"
        if self.a.frees or self.b.frees:
            return "free"
        return "value" if self.a.memory.name == self.b.memory.name else "reuse"

    @property
    def begin(self) -> int:
        """The first byte that both use, in the plan's arena."""
        return max(self.a.memory.begin, self.b.memory.begin)

    @property
    def end(self) -> int:
        """The end of the bytes that both use."""
        return min(self.a.memory.end, self.b.memory.end)


class _Use(NamedTuple):
    at: int
    access: Access


def races(launches: Sequence[Launch], ordering: Ordering | None = None) -> list[Race]:
    """Return the races of launches in the order of their second launch."""
    ordering = ordering or Ordering(launches)
    found: list[Race] = []
    columns = ordering.columns
    for uses in uses_of_bytes(launches):
        several = any(columns[use.at] != columns[uses[0].at] for use in uses)
        if several and _any_unordered(uses, ordering):
            found += _pairs(uses, ordering)
    return sorted(found, key=lambda race: (race.second, race.first))


def missing_edge(race: Race, launches: Sequence[Launch]) -> MissingEdge:
    """Return the smallest change that orders the launches of a race as the text does."""
    first = launches[race.first]
    recorded: dict[int, int] = {}
    for at in range(race.second):
        for event in launches[at].records:
            recorded[event] = at
    late = [
        (at, event)
        for event, at in recorded.items()
        if at >= race.first and launches[at].stream == first.stream
    ]
    if late and first.stream != HOST:
        at, event = min(late)
        return MissingEdge(at, race.second, event)
    return MissingEdge(race.first, race.second, None)


def conflict(a: Access, b: Access) -> bool:
    """Return whether two accesses use the same bytes, and one of them writes."""
    x, y = a.memory, b.memory
    return (a.writes or b.writes) and x.buffer == y.buffer and x.begin < y.end and y.begin < x.end


def uses_of_bytes(launches: Sequence[Launch]) -> Iterable[list[_Use]]:
    """Return the uses of each set of overlapping bytes, in the order of the launches."""
    buffers: dict[int, list[_Use]] = {}
    for at, launch in enumerate(launches):
        for access in launch.accesses:
            buffer = access.memory.buffer
            if buffer in buffers:
                buffers[buffer].append(_Use(at, access))
            else:
                buffers[buffer] = [_Use(at, access)]
    arena = buffers.pop(0, [])
    return [*buffers.values(), *_overlapping(arena)]


def _overlapping(uses: Sequence[_Use]) -> Iterator[list[_Use]]:
    """Yield the uses of the arena in groups that share no byte."""
    ordered = sorted(uses, key=lambda use: use.access.memory.begin)
    group: list[_Use] = []
    end = 0
    for use in ordered:
        if group and use.access.memory.begin >= end:
            yield sorted(group, key=lambda each: each.at)
            group = []
        group.append(use)
        end = max(end, use.access.memory.end)
    if group:
        yield sorted(group, key=lambda each: each.at)


def _any_unordered(uses: Sequence[_Use], ordering: Ordering) -> bool:
    """Return whether any two uses conflict and are not ordered.

    A use is dropped once a write to all of its bytes, or for a read another read, is ordered after it: what
    is unordered with the dropped one is unordered with the later one too.
    """
    clocks, columns, positions = ordering.clocks, ordering.columns, ordering.positions
    kept: list[_Use] = []
    for use in uses:
        at, access = use
        clock = clocks[at]
        remaining = []
        for earlier in kept:
            before, other = earlier
            ordered = before == at or clock[columns[before]] >= positions[before]
            if not ordered and conflict(other, access):
                return True
            replaces = access.writes or not other.writes
            if not (ordered and replaces and _covers(access.memory, other.memory)):
                remaining.append(earlier)
        remaining.append(use)
        kept = remaining
    return False


def _covers(outer: Memory, inner: Memory) -> bool:
    return outer.begin <= inner.begin and inner.end <= outer.end


def _pairs(uses: Sequence[_Use], ordering: Ordering) -> Iterator[Race]:
    few = uses[:MOST_COMPARED]
    for at, second in enumerate(few):
        for first in few[:at]:
            if first.at == second.at or not conflict(first.access, second.access):
                continue
            if not ordering.ordered(first.at, second.at):
                yield Race(first.at, second.at, first.access, second.access)
