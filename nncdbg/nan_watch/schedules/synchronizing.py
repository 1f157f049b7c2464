"""The smallest set of points where the host waits for all streams that hides a fault of a schedule.

Such a point orders the launches before it with those after it.  A race is hidden exactly if a point lies
between its two launches, so the smallest set is that of a greedy stabbing of intervals.
"""

from __future__ import annotations

from dataclasses import dataclass

from nncdbg.engine.schedules.flattening import FlatStatement
from nncdbg.engine.schedules.launches import Site
from nncdbg.engine.schedules.player import SyncPoint
from nncdbg.nan_watch.schedules.search import ScheduleSearch

_ORDERS = 50
"""The number of orders that are drawn to verify that the points hide the fault."""


@dataclass(frozen=True, slots=True)
class SyncPlace:
    """A point before statement `before`, and after statement `after`, of the graph that the run begins with.

    Both are the same call if no point between two statements of that graph hides the races; then `inside` is
    the statement of the called graph before which the host waits.  `point` is its place for the player.
    """

    point: SyncPoint
    after: Site
    before: Site
    inside: Site


def smallest_syncs(search: ScheduleSearch) -> list[SyncPlace]:
    """Return the fewest points that hide every race that changes a value.

    A race counts if the order that reverses it, with only what it needs, has another value.  If only several
    reversed races together change a value, all races count.
    """
    harmful = _places(search, harmful=True)
    syncs = [each.point for each in harmful]
    synchronized = ScheduleSearch(search.program, search.plan, search.inputs, syncs=syncs, **search.options)
    return _places(search, harmful=False) if synchronized.run(_ORDERS).differing else harmful


def _places(search: ScheduleSearch, *, harmful: bool) -> list[SyncPlace]:
    places = []
    for number, segment in enumerate(search.player.segments):
        intervals = []
        for first, second in segment.pairs:
            orders = [*search.player.issued()]
            orders[number] = segment.reversed_pair(first, second)
            if not harmful or search.difference(tuple(orders)) is not None:
                intervals.append((first, second))
        places += [
            _place(number, low, high, search.player.statements[number]) for low, high in _stabbed(intervals)
        ]
    return places


def _stabbed(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return for each point of the smallest set the first and last launch that it may precede."""
    found: list[tuple[int, int]] = []
    for first, second in sorted(intervals, key=lambda each: each[1]):
        if found and first < found[-1][1]:
            found[-1] = max(found[-1][0], first + 1), found[-1][1]
        else:
            found.append((first + 1, second))
    return found


def _place(number: int, low: int, high: int, statements: list[FlatStatement]) -> SyncPlace:
    """Return the point before one of the launches `low` to `high`, between two statements if possible."""
    at = next((at for at in range(low, high + 1) if statements[at].at != statements[at - 1].at), high)
    after, before = statements[at - 1].at, statements[at].at
    assert after is not None
    assert before is not None
    return SyncPlace((number, at), after, before, statements[at].launch.site)
