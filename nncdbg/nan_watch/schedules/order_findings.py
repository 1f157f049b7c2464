"""What a search of orders found, in a report: the first value that differs, the seed, and the sync points.

At a sync point, the host waits for all streams, which orders the launches before it with those after it.  A
race is hidden exactly if a point lies between its two launches, so the smallest set of points is that of a
greedy stabbing of intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nncdbg.comparison.schedule_problems import Party
from nncdbg.engine.schedules.flattening import FlatStatement
from nncdbg.engine.schedules.player import SyncPoint
from nncdbg.ir.streams import HOST, Site
from nncdbg.nan_watch.records import Report, WatchFinding
from nncdbg.nan_watch.schedules.findings import schedule_site
from nncdbg.nan_watch.schedules.search import OrderDifference, OrderSearch, ReplicaDifference, ScheduleSearch
from nncdbg.presentation.schedules import HIDDEN, ORDER, OVERWRITTEN, REPLICA, ScheduleWording
from nncdbg.text.counting import counted

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


_PAIRS = 3
"""The number of reversed pairs that a finding names."""

_HINTS = {
    ORDER: "order these statements by an event",
    OVERWRITTEN: "free the value after its last reader, and place it at bytes of its own",
    HIDDEN: "the kernel keeps state between calls",
}


def add_orders(report: Report, search: ScheduleSearch, found: OrderSearch) -> None:
    """Add to a report what a search found: one finding per value that differs, and notes."""
    wording = ScheduleWording(search.program)
    first: dict[str, OrderDifference] = {}
    for each in found.differing:
        first.setdefault(each.name, each)
    findings = [
        _finding(each, ORDER if each.reversed else OVERWRITTEN, _cause(each, wording), wording)
        for each in first.values()
    ]
    if found.hidden is not None:
        evidence = "other bits than in another run, although all statements that share memory are in order"
        findings.append(_finding(found.hidden, HIDDEN, evidence, wording))
    report.findings += findings
    report.counts["birth"] += len(findings)
    report.notes.append(played_orders(found))
    places = smallest_syncs(search) if found.differing else ()
    if places:
        words = ", and ".join(sync_words(each, wording) for each in places)
        report.notes.append(f"a host that waits for all streams {words} hides the races")


def played_orders(found: OrderSearch) -> str:
    """Return how many orders a search has played, and how many had other values, in one sentence."""
    counts = counted(found.outcomes, "outcome"), counted(found.orders, "order")
    number = len(found.differing) + (found.hidden is not None)
    differing = f"; {number} with other values" if number else ", all with equal values"
    if found.complete:
        played = f"all {found.outcomes} outcomes" if found.outcomes > 1 else "the only outcome"
    else:
        played = f"{counts[0]}, perhaps not all,"
    return f"played {played} in {counts[1]}{differing}"


def sync_words(place: SyncPlace, wording: ScheduleWording) -> str:
    """Return between which lines the host waits for all streams."""
    if place.after == place.before:
        return f"before line {wording.line(place.inside)}"
    return f"between lines {wording.line(place.after)} and {wording.line(place.before)}"


def add_replicas(report: Report, search: ScheduleSearch, differences: Sequence[ReplicaDifference]) -> None:
    """Add to a report the first statement in which a call of a graph differs from the other calls."""
    wording = ScheduleWording(search.program)
    first: dict[Site, ReplicaDifference] = {}
    last: dict[tuple[Site, Site], ReplicaDifference] = {}
    for each in differences:
        first.setdefault(each.call, each)
        last[each.call, each.site] = each
    for call, each in first.items():
        final = last[call, each.site]
        words = (
            f"in the call of line {wording.line(call)}, the norm is {_ratio(each.ratio)} that of other calls"
        )
        if final is not each:
            words += f" in execution {each.iteration + 1}, {_ratio(final.ratio)} in {final.iteration + 1}"
        block, pc = wording.block(each.site)
        name = block.nodes[pc].outputs[0].name
        report.findings.append(
            WatchFinding(
                "replica",
                "birth",
                schedule_site(Party(each.site, HOST, name), wording),
                cause=REPLICA,
                evidence=words,
                hint="compare the operands of this statement in the two calls",
                trips=True,
            )
        )
        report.counts["birth"] += 1
    if not differences:
        report.notes.append("all calls of each graph have equal values")


def _ratio(ratio: float) -> str:
    return f"{ratio:.3g} times" if ratio != 1 else "equal to"


def _finding(
    difference: OrderDifference, cause: str, evidence: str, wording: ScheduleWording
) -> WatchFinding:
    hint = _HINTS[cause]
    if difference.seed is not None and cause != HIDDEN:
        hint += f"; `--order {difference.seed} -o order.nnc` writes this order as a program"
    return WatchFinding(
        "state" if cause == HIDDEN else "race",
        "birth",
        schedule_site(Party(difference.site, HOST, difference.name), wording),
        cause=cause,
        evidence=evidence,
        hint=hint,
        trips=True,
    )


def _cause(difference: OrderDifference, wording: ScheduleWording) -> str:
    if not difference.reversed:
        return "other bits than without a schedule: a value is read after its memory was freed or used again"
    pairs = [*map(wording.pair, difference.reversed[:_PAIRS])]
    more = len(difference.reversed) - _PAIRS
    words = ", ".join([*pairs, *([f"and {more} more"] if more > 0 else [])])
    failed = f", and the run fails: {difference.error}" if difference.error is not None else ""
    order = "an order" if difference.seed is None else f"order {difference.seed}"
    return f"other bits than without a schedule in {order}, where {words}{failed}"
