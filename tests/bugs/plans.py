"""Bugs of memory plans, planted in plans that are right; the truth of each is known from the program.

The patterns are those of bugs that were really made: a life that ends too early, by one reader, in one
branch, at the end of an iteration, inside a block; an alias or a copy that was forgotten (also of a
`Concat`); sizes of another element type, not rounded, or of another run; offsets exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.memory.live_ranges import LiveRange, Times
from nncdbg.engine.memory.packing import pack
from nncdbg.engine.memory.plan_file import PlacedPlan, Site
from tests.bugs.plan_truth import Copy, Story, Truth

_MEETINGS = 250
"""Pairs of values of a program that are tried."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A plan with one bug; `pair` holds the two values that it lets share bytes, where it was made so."""

    pattern: str
    plan: PlacedPlan
    pair: tuple[Site, Site] | None = None


@dataclass(frozen=True, slots=True)
class Meeting:
    """`taker` is written while the copy `lost` waits to be read: after `before` of its `reads` statements."""

    lost: Copy
    taker: Copy
    reader: tuple[Any, int]
    before: int
    reads: int


def plan_of(story: Story, *, reuse: bool = True, times: Callable[[Code], Times] = Times) -> PlacedPlan:
    """A plan for the program of a story, right unless `times` is wrong."""
    return pack(story.codes, story.sizes, story.debugger.loaded.line, reuse=reuse, times=times)


def mutants(story: Story, random: Random) -> Iterator[Mutant]:
    """Bugs that can be planted in plans for a program, in a random order; not each changes a result."""
    apart, packed = plan_of(story, reuse=False), plan_of(story)
    meetings = list(_meetings(story, apart))
    meetings = random.sample(meetings, min(_MEETINGS, len(meetings)))
    made = [*_moved(story, apart, meetings), *_forgotten(packed, apart), *_resized(story, apart, meetings)]
    made += [*_exchanged(packed, random), *_short_lived(story, random)]
    random.shuffle(made)
    yield from made


# -- two values at one place ---------------------------------------------------------------------------


def _meetings(story: Story, plan: PlacedPlan) -> Iterator[Meeting]:
    """Who could take whose bytes, each pair of values once."""
    reads: dict[Copy, list[tuple[int, Any]]] = {}
    writes: list[tuple[int, Copy]] = []
    for number, step in enumerate(story.steps):
        for _, copy in step.reads:
            reads.setdefault(copy, []).append((number, step.at))
        writes += [(number, copy) for copy in step.writes if copy.site in plan.places]
    seen = set()
    for index, (made, lost) in enumerate(writes):
        times = reads.get(lost, [])
        if not times:
            continue
        for number, taker in writes[index + 1 :]:
            if number >= times[-1][0]:
                break
            pair = (lost.site, taker.site)
            if taker.site == lost.site or pair in seen or taker.of is lost:
                continue
            seen.add(pair)
            before = sum(made < time <= number for time, _ in times)
            reader = next(at for time, at in times if time > number)
            yield Meeting(lost, taker, reader, before, len({time for time, _ in times}))


def _moved(story: Story, plan: PlacedPlan, meetings: list[Meeting]) -> Iterator[Mutant]:
    """One value moved to the bytes of another that lives, in a plan in which all stand apart."""
    for meeting in meetings:
        lost, taker = meeting.lost.site, meeting.taker.site
        there = plan.places[lost]
        places = dict(plan.places)
        places[taker] = replace(places[taker], offset=there.offset, root=taker)
        yield Mutant(_pattern(story, meeting), replace(plan, places=places), (lost, taker))


def _pattern(story: Story, meeting: Meeting) -> str:
    """What the planner would have had to overlook for this."""
    lost, taker = meeting.lost, meeting.taker
    here, there = lost.site[0], taker.site[0]
    ops = {code.path: code for code in story.codes}
    path, pc = meeting.reader
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
            if not lost.handed
            else "result of a block freed too early"
        )
    if reader == "Concat" and meeting.before == meeting.reads - 1:
        return "inputs of Concat at one place"
    if taker.writer[1] < len(ops[taker.writer[0]].nodes) and any(
        copy is lost for step in story.steps if step.at == taker.writer for _, copy in step.reads
    ):
        return "written in place though it is read later"
    if meeting.reads == 2 and meeting.before == 1:
        return "freed after the first of two readers"
    if meeting.before == meeting.reads - 1 and meeting.reads > 1:
        return "freed one reader too early"
    return "two lives at one offset"


# -- copies and aliases that are forgotten ------------------------------------------------------------


def _forgotten(packed: PlacedPlan, apart: PlacedPlan) -> Iterator[Mutant]:
    """What a block, a loop or a call gives stays where it was made: the copy out, or in, is missing."""
    for plan in (packed, apart):
        for site in plan.places:
            places = {each: place for each, place in plan.places.items() if each != site}
            if any(place.root == site for place in places.values()):
                continue
            yield Mutant("copy out of a block forgotten", replace(plan, places=places))


# -- sizes --------------------------------------------------------------------------------------------------


def _resized(story: Story, plan: PlacedPlan, meetings: list[Meeting]) -> Iterator[Mutant]:
    """A value's place is too small, so that its neighbour stands in its end."""
    for meeting in meetings:
        lost, taker = meeting.lost.site, meeting.taker.site
        place, size = plan.places[lost], story.sizes[lost]
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
            places[taker] = replace(places[taker], offset=place.offset + shrunk, root=taker)
            yield Mutant(pattern, replace(plan, places=places), (lost, taker))
    for share in (2, 3):
        small = {site: max(1, size // share) for site, size in story.sizes.items()}
        yield Mutant(
            "sizes of an earlier, smaller run", pack(story.codes, small, story.debugger.loaded.line), None
        )


def _exchanged(plan: PlacedPlan, random: Random) -> Iterator[Mutant]:
    """Two offsets of a packed plan swapped."""
    sites = [site for site, place in plan.places.items() if place.root == site]
    for _ in range(min(30, len(sites) * (len(sites) - 1) // 2)):
        one, other = random.sample(sites, 2)
        places = dict(plan.places)
        places[one] = replace(places[one], offset=plan.places[other].offset)
        places[other] = replace(places[other], offset=plan.places[one].offset)
        yield Mutant("offsets exchanged", replace(plan, places=places))


# -- planners that are wrong about lives -------------------------------------------------------------------


class _ShortFor(Times):
    """One value dies in the middle of its life."""

    site: Site

    def range_of(self, code: Code, slot: int) -> LiveRange:
        live = super().range_of(code, slot)
        if (code.path, code.names[slot]) != self.site:
            return live
        begin, end = live.intervals[0]
        return replace(live, intervals=((begin, (begin + end) // 2),))


class _BlindToBlocks(Times):
    """What a block reads of the values around it is overlooked."""

    def range_of(self, code: Code, slot: int) -> LiveRange:
        live = super().range_of(code, slot)
        if live.last not in code.bodies or slot in code.operands[live.last]:
            return live
        begin, end = live.intervals[0]
        last = max((pc for pc in range(live.last) if slot in code.operands[pc]), default=live.definition)
        return replace(live, intervals=((begin, max(begin, min(end, self.spans[code][max(last, 0)][0]))),))


class _OneIteration(Times):
    """What a loop reads is freed after the reader in its body, as if there were one iteration only."""

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


class _CarriedDies(Times):
    """What a loop carries is taken for dead after its first reader in the body."""

    def range_of(self, code: Code, slot: int) -> LiveRange:
        live = super().range_of(code, slot)
        if live.definition >= 0 or code.parent is None:
            return live
        first = min((pc for pc in range(len(code.nodes)) if slot in code.reads(pc)), default=-1)
        if first < 0:
            return live
        (begin, _), *others = live.intervals
        return replace(live, intervals=((begin, self.spans[code][first][0]), *others))


def _short_lived(story: Story, random: Random) -> Iterator[Mutant]:
    """Whole plans by planners with a bug."""
    wrong: dict[str, type[Times]] = {
        "captures of blocks overlooked": _BlindToBlocks,
        "one iteration assumed": _OneIteration,
        "carried value dead after its first reader": _CarriedDies,
    }
    for pattern, times in wrong.items():
        yield Mutant(pattern, plan_of(story, times=times))
    for site in random.sample(list(story.sizes), min(12, len(story.sizes))):
        short = type("Short", (_ShortFor,), {"site": site})
        yield Mutant("packed with one life too short", plan_of(story, times=short))


def aimed_right(mutant: Mutant, truth: Truth) -> bool:
    """Whether the bug is between the two values that it was planted between."""
    return mutant.pair is None or {truth.lost.site, truth.taker.site} == set(mutant.pair)
