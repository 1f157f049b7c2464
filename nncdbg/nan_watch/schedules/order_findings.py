"""What a search of orders found, in a report: the first value that differs, the seed, and the sync points."""

from __future__ import annotations

from collections.abc import Sequence

from nncdbg.engine.schedules.launches import HOST, Site
from nncdbg.engine.schedules.validation import Party
from nncdbg.engine.text.counting import counted
from nncdbg.nan_watch.records import Report, WatchFinding
from nncdbg.nan_watch.schedules.findings import schedule_site
from nncdbg.nan_watch.schedules.replicas import ReplicaDifference
from nncdbg.nan_watch.schedules.search import OrderDifference, OrderSearch, ScheduleSearch
from nncdbg.nan_watch.schedules.synchronizing import SyncPlace, smallest_syncs
from nncdbg.presentation.schedules import HIDDEN, ORDER, OVERWRITTEN, REPLICA, ScheduleWording

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


def _order(difference: OrderDifference) -> str:
    return "an order" if difference.seed is None else f"order {difference.seed}"


def _cause(difference: OrderDifference, wording: ScheduleWording) -> str:
    if not difference.reversed:
        return "other bits than without a schedule: a value is read after its memory was freed or used again"
    pairs = [*map(wording.pair, difference.reversed[:_PAIRS])]
    more = len(difference.reversed) - _PAIRS
    words = ", ".join([*pairs, *([f"and {more} more"] if more > 0 else [])])
    failed = f", and the run fails: {difference.error}" if difference.error is not None else ""
    return f"other bits than without a schedule in {_order(difference)}, where {words}{failed}"
