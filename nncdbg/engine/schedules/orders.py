"""Legal orders of launches, as streams, events and the host allow, and the pairs that decide the outcome."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from nncdbg.engine.schedules.launches import Launch
from nncdbg.engine.schedules.ordering import Ordering
from nncdbg.engine.schedules.races import races

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
