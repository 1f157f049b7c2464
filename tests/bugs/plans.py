"""Bugs planted in correct memory plans; the truth of each is computed from the program.

The patterns are those of real bugs: a live range that ends too early (by one reader, in one branch, at the
end of an iteration, inside a block); a missing alias or copy (also of a `Concat`); sizes of another element
type, not rounded up, or of another run; exchanged offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from nncdbg.comparison.launches import PlacedPlan
from nncdbg.comparison.launches import ValueSite as Site
from nncdbg.engine.compilation.code import Code
from nncdbg.engine.memory.packing import LiveRange, Times, pack
from tests.bugs.plan_truth import Copy, History, Truth

_MOST_OVERLAPS = 250
"""The number of pairs of values that are tried per program."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A plan with one bug; `pair` is the two values that share bytes, for bugs planted by pair."""

    pattern: str
    plan: PlacedPlan
    pair: tuple[Site, Site] | None = None


@dataclass(frozen=True, slots=True)
class Overlap:
    """`overwriter` is written while the copy `lost` is live: after `before` of the `reads` statements."""

    lost: Copy
    overwriter: Copy
    reader: tuple[Any, int]
    before: int
    reads: int


def plan_of(history: History, *, reuse: bool = True, times: Callable[[Code], Times] = Times) -> PlacedPlan:
    """Return a plan for the program of a history; it is correct unless `times` is wrong."""
    return pack(history.codes, history.sizes, history.debugger.loaded.line, reuse=reuse, times=times)


def mutants(history: History, random: Random) -> Iterator[Mutant]:
    """Yield bugs in plans for a program, in a random order; not every bug changes a result."""
    unshared, packed = plan_of(history, reuse=False), plan_of(history)
    overlaps = list(_overlaps(history, unshared))
    overlaps = random.sample(overlaps, min(_MOST_OVERLAPS, len(overlaps)))
    made = [
        *_moved(history, unshared, overlaps),
        *_without_copy(packed, unshared),
        *_resized(history, unshared, overlaps),
    ]
    made += [*_exchanged(packed, random), *_short_lived(history, random)]
    random.shuffle(made)
    yield from made


# -- two values at one offset --------------------------------------------------------------------------


def _overlaps(history: History, plan: PlacedPlan) -> Iterator[Overlap]:
    """Yield each pair of values of which one is written during the life of the other."""
    reads: dict[Copy, list[tuple[int, Any]]] = {}
    writes: list[tuple[int, Copy]] = []
    for number, step in enumerate(history.steps):
        for _, copy in step.reads:
            reads.setdefault(copy, []).append((number, step.at))
        writes += [(number, copy) for copy in step.writes if copy.site in plan.places]
    seen = set()
    for index, (made, lost) in enumerate(writes):
        times = reads.get(lost, [])
        if not times:
            continue
        for number, overwriter in writes[index + 1 :]:
            if number >= times[-1][0]:
                break
            pair = (lost.site, overwriter.site)
            if overwriter.site == lost.site or pair in seen or overwriter.of is lost:
                continue
            seen.add(pair)
            before = sum(made < time <= number for time, _ in times)
            reader = next(at for time, at in times if time > number)
            yield Overlap(lost, overwriter, reader, before, len({time for time, _ in times}))


def _moved(history: History, plan: PlacedPlan, overlaps: list[Overlap]) -> Iterator[Mutant]:
    """Move one value to the bytes of another live value, in a plan without reuse."""
    for overlap in overlaps:
        lost, overwriter = overlap.lost.site, overlap.overwriter.site
        there = plan.places[lost]
        places = dict(plan.places)
        places[overwriter] = replace(places[overwriter], offset=there.offset, root=overwriter)
        yield Mutant(_pattern(history, overlap), replace(plan, places=places), (lost, overwriter))


def _pattern(history: History, overlap: Overlap) -> str:
    """Return the planner's mistake that would cause this."""
    lost, overwriter = overlap.lost, overlap.overwriter
    here, there = lost.site[0], overwriter.site[0]
    ops = {code.path: code for code in history.codes}
    path, pc = overlap.reader
    reader = ops[path].nodes[pc].op if pc < len(ops[path].nodes) else "end"
    if here[0] != there[0]:
        return "freed before a call that it outlives"
    if len(there) > len(here) and there[: len(here)] == here:
        block = ops[here].nodes[int(there[len(here)])].op
        if block == "if":
            return "freed in one branch only"
        return "captured value freed inside the loop"
    carried = range(2, 1 + len(ops[here].graph.inputs)) if len(here) > 1 else range(0)
    if here == there and ops[here].slot_of[lost.site[1]] in carried:
        return "carried value freed in the iteration"
    if lost.of is not None:
        return (
            "alias missed: freed with what it shows"
            if not lost.passed
            else "result of a block freed too early"
        )
    if reader == "Concat" and overlap.before == overlap.reads - 1:
        return "inputs of Concat at one place"
    if overwriter.writer[1] < len(ops[overwriter.writer[0]].nodes) and any(
        copy is lost for step in history.steps if step.at == overwriter.writer for _, copy in step.reads
    ):
        return "written in place though it is read later"
    if overlap.reads == 2 and overlap.before == 1:
        return "freed after the first of two readers"
    if overlap.before == overlap.reads - 1 and overlap.reads > 1:
        return "freed one reader too early"
    return "two lives at one offset"


# -- missing copies and aliases -----------------------------------------------------------------------


def _without_copy(packed: PlacedPlan, unshared: PlacedPlan) -> Iterator[Mutant]:
    """Leave the result of a block, a loop or a call at its original place, without the copy."""
    for plan in (packed, unshared):
        for site in plan.places:
            places = {each: place for each, place in plan.places.items() if each != site}
            if any(place.root == site for place in places.values()):
                continue
            yield Mutant("copy out of a block forgotten", replace(plan, places=places))


# -- sizes --------------------------------------------------------------------------------------------------


def _resized(history: History, plan: PlacedPlan, overlaps: list[Overlap]) -> Iterator[Mutant]:
    """Make a value's place too small, so that its neighbour overlaps its end."""
    for overlap in overlaps:
        lost, overwriter = overlap.lost.site, overlap.overwriter.site
        place, size = plan.places[lost], history.sizes[lost]
        kinds = {
            "size of half the element type": size // 2,
            "size not rounded up": size - 4,
            "one row less": size * 3 // 4,
        }
        for pattern, shrunk in kinds.items():
            if not 0 < shrunk < size:
                continue
            places = dict(plan.places)
            places[lost] = replace(place, size=shrunk)
            places[overwriter] = replace(places[overwriter], offset=place.offset + shrunk, root=overwriter)
            yield Mutant(pattern, replace(plan, places=places), (lost, overwriter))
    for share in (2, 3):
        small = {site: max(1, size // share) for site, size in history.sizes.items()}
        yield Mutant(
            "sizes of an earlier, smaller run", pack(history.codes, small, history.debugger.loaded.line), None
        )


def _exchanged(plan: PlacedPlan, random: Random) -> Iterator[Mutant]:
    """Swap two offsets of a packed plan."""
    sites = [site for site, place in plan.places.items() if place.root == site]
    for _ in range(min(30, len(sites) * (len(sites) - 1) // 2)):
        one, other = random.sample(sites, 2)
        places = dict(plan.places)
        places[one] = replace(places[one], offset=plan.places[other].offset)
        places[other] = replace(places[other], offset=plan.places[one].offset)
        yield Mutant("offsets exchanged", replace(plan, places=places))


# -- planners with wrong live ranges -----------------------------------------------------------------------


class _OneShortRange(Times):
    """End one live range in its middle."""

    site: Site

    def range_of(self, code: Code, slot: int) -> LiveRange:
        live = super().range_of(code, slot)
        if (code.path, code.names[slot]) != self.site:
            return live
        begin, end = live.intervals[0]
        return replace(live, intervals=((begin, (begin + end) // 2),))


class _WithoutCaptures(Times):
    """Ignore the reads of captured values in blocks."""

    def range_of(self, code: Code, slot: int) -> LiveRange:
        live = super().range_of(code, slot)
        if live.last not in code.bodies or slot in code.operands[live.last]:
            return live
        begin, end = live.intervals[0]
        last = max((pc for pc in range(live.last) if slot in code.operands[pc]), default=live.definition)
        return replace(live, intervals=((begin, max(begin, min(end, self.spans[code][max(last, 0)][0]))),))


class _OneIteration(Times):
    """Free the captured values of a loop after their last reader in the body, as if it ran only once."""

    def range_of(self, code: Code, slot: int) -> LiveRange:
        live = super().range_of(code, slot)
        if live.last not in code.bodies or code.nodes[live.last].op != "while":
            return live
        begin, end = live.intervals[0]
        body = code.bodies[live.last][0]
        inner = next((inner for outer, inner in body.captures if outer == slot), None)
        if inner is None:
            return live
        last = max((pc for pc in range(len(body.nodes)) if inner in body.reads(pc)), default=-1)
        return live if last < 0 else replace(live, intervals=((begin, self.spans[body][last][0]),))


class _CarriedFreedEarly(Times):
    """Free the carried values of a loop after their first reader in the body."""

    def range_of(self, code: Code, slot: int) -> LiveRange:
        live = super().range_of(code, slot)
        if live.definition >= 0 or code.parent is None:
            return live
        first = min((pc for pc in range(len(code.nodes)) if slot in code.reads(pc)), default=-1)
        if first < 0:
            return live
        (begin, _), *others = live.intervals
        return replace(live, intervals=((begin, self.spans[code][first][0]), *others))


def _short_lived(history: History, random: Random) -> Iterator[Mutant]:
    """Return plans of planners with a bug."""
    wrong: dict[str, type[Times]] = {
        "captures of blocks overlooked": _WithoutCaptures,
        "one iteration assumed": _OneIteration,
        "carried value dead after its first reader": _CarriedFreedEarly,
    }
    for pattern, times in wrong.items():
        yield Mutant(pattern, plan_of(history, times=times))
    for site in random.sample(list(history.sizes), min(12, len(history.sizes))):
        short = type("Short", (_OneShortRange,), {"site": site})
        yield Mutant("packed with one life too short", plan_of(history, times=short))


def affects_planted_pair(mutant: Mutant, truth: Truth) -> bool:
    """Return whether the two values of the bug are those of the planted pair."""
    return mutant.pair is None or {truth.lost.site, truth.overwriter.site} == set(mutant.pair)
