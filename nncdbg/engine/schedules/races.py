"""Races: accesses to the same bytes, at least one a write, by launches that no chain of events orders.

The search is that of FastTrack (C. Flanagan and S. Freund, PLDI 2009): an access is compared with those that
may still be unordered with a later one, so that a schedule without races takes linear time.  If the bytes
have a race, all their pairs are compared.

Vector clocks tell what happens before what.  A launch is ordered after the launches before it on its stream,
after all that is before a record of an event that it waits for, and after all that the host has waited for
when it issues the launch.  As with CUDA events, a wait concerns the latest record that the host has issued;
without one, it orders nothing.

The clocks are those of C. Fidge, "Timestamps in Message-Passing Systems That Preserve the Partial Ordering"
(1988): component i of the clock of a launch counts the launches of stream i that end before it begins, itself
included in its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from nncdbg.comparison.launches import Access, Launch, Memory
from nncdbg.ir.streams import HOST

Clock = list[int]


class Ordering:
    """The happens-before relation of launches, which are named by their position in the list."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        self.launches = launches
        streams = {each.stream for each in launches} | {begun for each in launches for begun in each.begins}
        self.column = {stream: at for at, stream in enumerate(sorted(streams | {HOST}))}
        """The component of each stream in the clocks; that of the host is 0."""
        self.clocks: list[Clock] = []
        self.columns: list[int] = []
        self.positions: list[int] = []
        """The number of each launch on its stream, from 1."""
        self.depth = [0] * len(self.column)
        """The largest number of launches of a stream that the host had issued without knowing their end."""
        self._order()

    def before(self, first: int, second: int) -> bool:
        """Return whether launch `first` ends before launch `second` begins in every legal order."""
        return first != second and self.clocks[second][self.columns[first]] >= self.positions[first]

    def ordered(self, a: int, b: int) -> bool:
        """Return whether two launches are ordered, either way."""
        return self.before(a, b) or self.before(b, a)

    def _order(self) -> None:
        width = len(self.column)
        latest = [[0] * width for _ in range(width)]
        events: dict[int, Clock] = {}
        clocks, columns, positions = self.clocks, self.columns, self.positions
        seen = [0] * width  # The version of the host's clock that each stream has.
        version = 0
        for launch in self.launches:
            column = self.column[launch.stream]
            clock = latest[column].copy()
            if column and seen[column] != version:
                seen[column] = version
                _merge(clock, latest[0])
            for event in launch.waits:
                if event in events:
                    _merge(clock, events[event])
            if launch.barrier:
                for other in latest:
                    _merge(clock, other)
            for stream in launch.begins:
                begun = latest[self.column[stream]] = latest[self.column[stream]].copy()
                _merge(begun, clock)
                if not launch.accesses:  # There is no statement for which the streams would not wait.
                    begun[column] = clock[column] + 1
            clock[column] += 1
            latest[column] = clock
            clocks.append(clock)
            columns.append(column)
            positions.append(clock[column])
            for event in launch.records:
                events[event] = clock
            if column == 0:
                version += 1
            else:
                self.depth[column] = max(self.depth[column], clock[column] - latest[0][column])


def _merge(into: Clock, other: Clock) -> None:
    for at, count in enumerate(other):
        if count > into[at]:
            into[at] = count


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


Order = tuple[int, ...]
"""The positions of launches in the order in which a device executes them."""

_CHANGES = 3
"""The largest number of times that the stream with the highest priority gets the lowest one."""


class OrderedSegment:
    """Launches between two points at which the host waits, with their legal orders."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        self.launches = launches
        self.ordering = Ordering(launches)
        found = races(launches, self.ordering)
        pairs = ((race.first, race.second) for race in found if race.a.memory.kind == "value")
        self.pairs = tuple(dict.fromkeys(pairs))
        """The launches with unordered accesses to the same bytes: their orders decide the outcome."""

    def issued(self) -> Order:
        """Return the order of the text."""
        return tuple(range(len(self.launches)))

    def outcome(self, order: Order) -> tuple[bool, ...]:
        """Return for each pair whether its second launch runs first; equal for orders with equal values.

        This is the class of the order as a trace (A. Mazurkiewicz, 1977): orders of one class differ only
        by exchanges of launches that share no bytes.
        """
        at = {launch: place for place, launch in enumerate(order)}
        return tuple(at[second] < at[first] for first, second in self.pairs)

    def drawn(self, draw: random.Random) -> Order:
        """Return an order by random priorities of the streams, which change a few times.

        A race of one pair shows with a probability of at least 1 / streams (S. Burckhardt et al., "A
        Randomized Scheduler with Probabilistic Guarantees of Finding Bugs", ASPLOS 2010).
        """
        count = len(self.launches)
        streams = list(self.ordering.column.values())
        draw.shuffle(streams)
        changes = {draw.randrange(count) for _ in range(draw.randrange(_CHANGES + 1))} if count else set()
        uniform = draw.random() < 0.25

        def choose(ready: Sequence[int], step: int) -> int:
            if uniform:
                return draw.choice(ready)
            if step in changes:
                streams.append(streams.pop(0))
            return min(ready, key=lambda at: streams.index(self.ordering.columns[at]))

        return self._order(choose)

    def reversed_pair(self, first: int, second: int) -> Order:
        """Return an order in which `second` runs before `first`, with only what it needs before it."""
        before = self.ordering.before
        needed = [at for at in range(second) if before(at, second)]
        chosen = {*needed, second}
        return (*needed, second, *(at for at in range(len(self.launches)) if at not in chosen))

    def outcomes(self) -> Iterator[Order]:
        """Yield one order of each outcome."""
        for pairs in self._orientations():
            after: dict[int, set[int]] = {}
            for one, other in pairs:
                after.setdefault(other, set()).add(one)
            yield self._constrained(after)

    def count(self, most: int) -> int | None:
        """Return the number of outcomes; None if there are more than `most`."""
        found = sum(1 for _ in islice(self._orientations(), most + 1))
        return found if found <= most else None

    def _orientations(self) -> Iterator[list[tuple[int, int]]]:
        """Yield the directions of all pairs, as (first to run, second to run), that are no cycle."""
        racing = sorted({at for pair in self.pairs for at in pair})
        place = {at: number for number, at in enumerate(racing)}
        before = self.ordering.before
        reached = [sum(1 << place[each] for each in racing if before(at, each)) for at in racing]
        stack: list[tuple[list[tuple[int, int]], list[int]]] = [([], reached)]
        while stack:
            chosen, reached = stack.pop()
            if len(chosen) == len(self.pairs):
                yield chosen
                continue
            first, second = self.pairs[len(chosen)]
            for one, other in ((second, first), (first, second)):
                following = _with_edge(reached, place[one], place[other])
                if following is not None:
                    stack.append(([*chosen, (one, other)], following))

    def _constrained(self, after: Mapping[int, set[int]]) -> Order:
        """Return an order in which each launch runs after those of `after`."""
        done: set[int] = set()

        def choose(ready: Sequence[int], step: int) -> int:
            found = next(at for at in ready if at not in after or after[at] <= done)
            done.add(found)
            return found

        return self._order(choose)

    def _order(self, choose: Callable[[Sequence[int], int], int]) -> Order:
        """Return the launches as `choose` takes them, of those that are ready."""
        ordering = self.ordering
        columns, clocks = ordering.columns, ordering.clocks
        queues: list[list[int]] = [[] for _ in ordering.column]
        for at in reversed(range(len(self.launches))):
            queues[columns[at]].append(at)
        played = [0] * len(queues)
        order = []
        for step in range(len(self.launches)):
            ready = [queue[-1] for queue in queues if queue and _ready(clocks[queue[-1]], played)]
            chosen = choose(ready, step)
            order.append(queues[columns[chosen]].pop())
            played[columns[chosen]] += 1
        return tuple(order)


def _with_edge(reached: Sequence[int], one: int, other: int) -> list[int] | None:
    """Return what each launch reaches with another edge, as bits; None if it closes a cycle."""
    if reached[other] >> one & 1:
        return None
    more = reached[other] | 1 << other
    return [bits | more if at == one or bits >> one & 1 else bits for at, bits in enumerate(reached)]


def _ready(clock: Sequence[int], played: Sequence[int]) -> bool:
    """Return whether a launch with this clock, the next one of its stream, may run.

    Its own component is one more than what was played of its stream.
    """
    missing = 0
    for count, done in zip(clock, played, strict=True):
        if count > done:
            missing += count - done
            if missing > 1:
                return False
    return True
