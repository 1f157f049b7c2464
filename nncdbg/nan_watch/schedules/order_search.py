"""Search for orders of a schedule with other values: each outcome is played once; replicas are compared."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from nncdbg.comparison.launches import PlacedPlan
from nncdbg.comparison.schedule_problems import Party
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.digest_run import digest
from nncdbg.engine.divergence.sides import Side
from nncdbg.engine.schedules.flattening import FlatStatement
from nncdbg.engine.schedules.player import Orders, SchedulePlayer, SyncPoint
from nncdbg.errors import NncdbgError
from nncdbg.ir.records import Program, TensorType, type_of
from nncdbg.ir.streams import HOST, Site
from nncdbg.ir.walk import walk_nodes
from nncdbg.nan_watch.records import Report, WatchFinding
from nncdbg.nan_watch.schedules.findings import schedule_site
from nncdbg.presentation.schedules import HIDDEN, ORDER, OVERWRITTEN, REPLICA, ScheduleWording
from nncdbg.text.counting import counted


@dataclass(slots=True)
class ObservedRun:
    """The digests of all values of a run by name, one per execution of the statement.

    Digests are equal for all NaNs.  `types` are the types of the values.  `error` ended the run.
    """

    values: dict[str, list[int]] = field(default_factory=dict)
    order: list[tuple[str, int]] = field(default_factory=list)
    """The values in the order in which they were computed, with the number of the execution."""
    types: dict[str, TensorType] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    norms: dict[str, list[float]] = field(default_factory=dict)
    """The Euclidean norms of the numeric values, beside `values`."""
    error: NncdbgError | None = None

    def first_difference(self, other: ObservedRun) -> str | None:
        """Return the first value, in the order of this run, that has other bits in the other run.

        A value that the other run does not compute differs only if that run ended with an error.
        """
        for name, number in self.order:
            theirs = other.values.get(name, [])
            if number < len(theirs):
                if theirs[number] != self.values[name][number]:
                    return name
            elif other.error is not None:
                return name
        return None


def observed(
    program: Program, inputs: Mapping[str, Any] | None, *, norms: bool = False, **options: Any
) -> ObservedRun:
    """Run a program to its end, and return the digests of its values, and with `norms` their norms.

    `options` are those of Debugger.
    """
    debugger = Debugger(program, inputs, allocator="plain", statistics=False, **options)
    side, run = Side(debugger, "the run"), ObservedRun()
    try:
        for written in side.all():
            for name, content in zip(written.names, written.contents, strict=False):
                digests = run.values.setdefault(name, [])
                run.order.append((name, len(digests)))
                digests.append(digest(content))
                if norms:
                    run.norms.setdefault(name, []).append(_norm(content))
                found = type_of(content)
                if found is not None:
                    run.types[name] = found
        run.outputs = side.outputs()
    except NncdbgError as error:
        run.error = error
    return run


def _norm(content: Any) -> float:
    if not isinstance(content, np.ndarray) or content.dtype.hasobject:
        return math.nan
    return float(np.linalg.norm(content.astype(np.complex128 if content.dtype.kind == "c" else np.float64)))


REPEATS = 5
"""The number of further orders with the outcome of the text that are played, to find hidden state."""

Outcome = tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class OrderDifference:
    """An order with another value than the program without a schedule.

    `name` is the first value that differs, in the order of the text, and `site` its statement.  `seed` draws
    the order; None for one that was enumerated.  `reversed` are the pairs of statements with accesses to the
    same bytes that run against the order of the text.  `stale`: a statement reads what another one left in
    memory, or nothing.  `error` is the failure of the run, if it failed.
    """

    name: str
    site: Site
    seed: int | None
    reversed: tuple[tuple[Site, Site], ...]
    orders: Orders = field(repr=False)
    stale: bool = False
    error: Exception | None = None

    @property
    def hidden(self) -> bool:
        """Whether nothing in the order explains the difference: a kernel keeps state between calls."""
        return not self.stale and not self.reversed


@dataclass(slots=True)
class OrderSearch:
    """What a search found: `outcomes` were played, out of `orders` that were drawn.

    `total` is the number of outcomes that exist, None if there are more than the search may play.
    `hidden` is a difference that no order explains: its statement keeps state that the graph does not show.
    """

    orders: int = 0
    outcomes: int = 0
    total: int | None = None
    differing: list[OrderDifference] = field(default_factory=list)
    hidden: OrderDifference | None = None

    @property
    def complete(self) -> bool:
        """Whether every outcome was played."""
        return self.total is not None and self.outcomes == self.total


class ScheduleSearch:
    """Plays orders of a scheduled program with these inputs; `options` are those of Debugger."""

    def __init__(
        self,
        program: Program,
        plan: PlacedPlan | None = None,
        inputs: Mapping[str, Any] | None = None,
        *,
        syncs: Collection[SyncPoint] = (),
        **options: Any,
    ) -> None:
        self.program, self.plan, self.inputs, self.options = program, plan, inputs, options
        self.expected = self.observed(SchedulePlayer(program, plan).reference())
        if self.expected.error is not None:
            raise self.expected.error
        self.player = SchedulePlayer(program, plan, types=self.expected.types, syncs=syncs)

    def run(self, schedules: int, seed: int = 0, *, every: bool = True) -> OrderSearch:
        """Draw this number of orders, from this seed on, and play those with a new outcome.

        With `every`, all outcomes are played if there are fewer than `schedules`.
        """
        found = OrderSearch(total=self.total(schedules) if every else None)
        seen: set[Outcome] = set()
        for number, orders in self._orders(schedules, seed, found):
            outcome = self.player.outcome(orders)
            if outcome in seen:
                continue
            seen.add(outcome)
            found.outcomes += 1
            difference = self.difference(orders, number)
            if difference is not None and not difference.hidden:
                found.differing.append(difference)
            elif difference is not None and found.hidden is None:
                found.hidden = difference
            if found.complete:
                break
        found.hidden = found.hidden or self._hidden(seed, schedules)
        return found

    def total(self, most: int) -> int | None:
        """Return the number of outcomes; None if there are more than `most`."""
        number = 1
        for segment in self.player.segments:
            count = segment.count(most // number)
            if count is None:
                return None
            number *= count
        return number

    def difference(self, orders: Orders, seed: int | None = None) -> OrderDifference | None:
        """Play an order, and return the first value that differs from the program without a schedule."""
        program = self.player.program(orders)
        run = self.observed(program)
        name = self.expected.first_difference(run)
        if name is None:
            return None
        site = self.player.sites.get(name) or self.player.sites[name.removesuffix(".late")]
        stale = any(
            node.op == "nncdbg.Remains" for graph in program.graphs.values() for node in walk_nodes(graph)
        )
        return OrderDifference(name, site, seed, tuple(self.reversed(orders)), orders, stale, run.error)

    def reversed(self, orders: Orders) -> Iterator[tuple[Site, Site]]:
        """Yield the pairs of statements that run against the order of the text, the later one first."""
        for segment, order in zip(self.player.segments, orders, strict=True):
            for swapped, (first, second) in zip(segment.outcome(order), segment.pairs, strict=True):
                if swapped:
                    yield segment.launches[second].site, segment.launches[first].site

    def observed(self, program: Program) -> ObservedRun:
        """Run a program with the inputs of the search."""
        return observed(program, self.inputs, **self.options)

    def _orders(self, schedules: int, seed: int, found: OrderSearch) -> Iterator[tuple[int | None, Orders]]:
        for number in range(seed, seed + schedules):
            found.orders += 1
            yield number, self.player.drawn(number)
        if found.total is not None:
            for orders in product(*(segment.outcomes() for segment in self.player.segments)):
                yield None, orders

    def _hidden(self, seed: int, schedules: int) -> OrderDifference | None:
        """Return an order with the outcome of the text, and another value."""
        played = {self.player.issued()}
        for number in range(seed, seed + min(schedules, 10 * REPEATS)):
            orders = self.player.drawn(number)
            if orders in played or any(self.player.outcome(orders)):
                continue
            played.add(orders)
            found = self.difference(orders, number)
            if found is not None and found.hidden:
                return found
            if len(played) > REPEATS:
                break
        return None


@dataclass(frozen=True, slots=True)
class ReplicaDifference:
    """A statement of a graph that computes another value in one call than in most others.

    `call` is that call.  `iteration` counts the executions of the statement, from 0.  `ratio` is the
    Euclidean norm of the value, divided by the median of the norms in the other calls.
    """

    site: Site
    call: Site
    iteration: int
    ratio: float


def replica_differences(search: ScheduleSearch, orders: Orders | None = None) -> list[ReplicaDifference]:
    """Compare the calls of each graph that is called several times, and return what differs, in order.

    The program runs in these orders; None: in the order of the text, without races.  The first entry of an
    iteration is where its difference originates.
    """
    player = search.player
    program = player.reference() if orders is None else player.program(orders)
    run = observed(program, search.inputs, norms=True, **search.options)
    groups: dict[tuple[Site, int], dict[Site, str]] = {}
    for name, digests in run.values.items():
        site, call = player.sites.get(name), player.calls.get(name)
        if site is not None and call is not None and site != call:
            for iteration in range(len(digests)):
                groups.setdefault((site, iteration), {}).setdefault(call, name)
    ordered = sorted(groups.items(), key=lambda group: group[0][1])
    return [each for (site, number), calls in ordered for each in _differing(run, site, number, calls)]


def _differing(
    run: ObservedRun, site: Site, iteration: int, calls: dict[Site, str]
) -> Iterator[ReplicaDifference]:
    """Yield the calls whose value is not that of the most calls; none if all values differ."""
    digests = {call: run.values[name][iteration] for call, name in calls.items()}
    (usual, count), *_ = Counter(digests.values()).most_common(1)
    if len(calls) < 2 or (count == 1 and len(calls) > 2):
        return
    norms = {call: run.norms[name][iteration] for call, name in calls.items()}
    for call, own in digests.items():
        if own != usual:
            others = statistics.median(norm for other, norm in norms.items() if other != call)
            yield ReplicaDifference(site, call, iteration, norms[call] / others if others else math.inf)


_ORDERS = 50
"""The number of orders that are drawn to verify that the points hide the fault."""


# -- what a search found, in a report: the first value that differs, the seed, and the sync points -----


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

    At such a point, the host waits for all streams, which orders the launches before it with those after it.
    A race is hidden exactly if a point lies between its two launches, so the smallest set of points is that
    of a greedy stabbing of intervals.

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
