"""Legal orders of launches, as streams, events and the host allow, and the pairs that decide the outcome."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

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
        stack: list[tuple[int, list[set[int]]]] = [(0, [set() for _ in self.launches])]
        while stack:
            number, after = stack.pop()
            order = self._constrained(after)
            if order is None:
                continue
            if number == len(self.pairs):
                yield order
                continue
            first, second = self.pairs[number]
            for one, other in ((second, first), (first, second)):
                following = [set(each) for each in after]
                following[other].add(one)
                stack.append((number + 1, following))

    def _constrained(self, after: Sequence[set[int]]) -> Order | None:
        """Return an order in which each launch runs after those of `after`; None if there is none."""
        done: set[int] = set()

        def choose(ready: Sequence[int], step: int) -> int | None:
            found = next((at for at in ready if after[at] <= done), None)
            if found is not None:
                done.add(found)
            return found

        order = self._order(choose)
        return order if len(order) == len(self.launches) else None

    def _order(self, choose: Callable[[Sequence[int], int], int | None]) -> Order:
        """Return the launches as `choose` takes them, of those that are ready; None ends the order."""
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
            if chosen is None:
                break
            order.append(queues[columns[chosen]].pop())
            played[columns[chosen]] += 1
        return tuple(order)


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
