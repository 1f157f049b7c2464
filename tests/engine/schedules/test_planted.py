"""Planted faults of schedules are all found, and correct schedules have none.

Whether a planted fault is one is decided by the device of `random_schedules`, which shares no code with the
validator: a read is wrong if it can begin while its writer still runs, or the writer of its bytes before it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

import nncdbg
from nncdbg.comparison.launches import Access, Launch, PlacedPlan, launches
from nncdbg.engine.schedules.scheduler import with_schedule
from nncdbg.engine.schedules.validation import margins_of, validate, with_margins
from nncdbg.ir.records import Placement, Program
from nncdbg.ir.streams import Site
from nncdbg.nan_watch.memory.comparison import memory_plan
from tests.engine.schedules.random_schedules import begun_without_end_of, layered

CORRECT = 400
EACH = 100


@cache
def correct(seed: int) -> tuple[Program, PlacedPlan | None]:
    """Return a program with a schedule of nncdbg, for every second seed with a memory plan."""
    program = nncdbg.Program.parse(layered(seed))
    inputs = {"x": [0.5] * 64, "y": [0.25] * 64}
    plan = memory_plan(program, inputs) if seed % 2 else None
    return with_schedule(program, streams=2 + seed % 4, plan=plan), plan


@pytest.mark.parametrize("part", range(4))
def test_correct_schedules_have_no_problem(part: int) -> None:
    for seed in range(part * CORRECT // 4, (part + 1) * CORRECT // 4):
        program, plan = correct(seed)
        assert validate(program, plan).problems == (), seed
        assert seed % 4 or not wrong(launches(program, plan)), seed


def wrong(issued: list[Launch]) -> bool:
    """Return whether a device may execute these launches so that a value is read or written wrongly."""
    begun = [begun_without_end_of(at, issued) for at in range(len(issued))]
    for second in range(len(issued)):
        for first in range(second):
            pairs = ((a, b) for a in issued[first].accesses for b in issued[second].accesses)
            if second in begun[first] and first in begun[second] and any(meet(a, b) for a, b in pairs):
                return True
    return any(
        a.frees and a.memory == b.memory and not b.writes
        for first, launch in enumerate(issued)
        for other in issued[first + 1 :]
        for a in launch.accesses
        for b in other.accesses
    )


def meet(a: Access, b: Access) -> bool:
    x, y = a.memory, b.memory
    same = x.buffer == y.buffer and max(x.begin, y.begin) < min(x.end, y.end)
    return same and (a.writes or b.writes)


Margins = dict[Site, Placement]


def missing_wait(margins: Margins, draw: random.Random, names: list[str]) -> None:
    site, event = draw.choice([(at, event) for at, each in margins.items() for event in each.waits])
    left = tuple(each for each in margins[site].waits if each != event)
    margins[site] = replace(margins[site], waits=left)


def wrong_event(margins: Margins, draw: random.Random, names: list[str]) -> None:
    site, event = draw.choice([(at, event) for at, each in margins.items() for event in each.waits])
    events = sorted({event for each in margins.values() for event in each.records} - {event}) or [99]
    changed = tuple(draw.choice(events) if each == event else each for each in margins[site].waits)
    margins[site] = replace(margins[site], waits=changed)


def event_reused(margins: Margins, draw: random.Random, names: list[str]) -> None:
    """Record an event again, by the statement of another event, before a wait for it."""
    recorded = {event: site[1] for site, each in margins.items() for event in each.records}
    pairs = [
        (event, other)
        for site, each in margins.items()
        for event in each.waits
        for other, pc in recorded.items()
        if recorded[event] < pc < site[1]
    ]
    new, old = draw.choice(pairs or [(1, 1)])
    for site, each in margins.items():
        waits = tuple(dict.fromkeys(new if event == old else event for event in each.waits))
        records = tuple(dict.fromkeys(new if event == old else event for event in each.records))
        margins[site] = replace(each, waits=waits, records=records)


def early_free(margins: Margins, draw: random.Random, names: list[str]) -> None:
    pc = draw.randrange(len(names) - 1)
    site = (("main",), draw.randrange(pc, len(names)))
    margins[site] = replace(margins[site], frees=(names[pc],))


def host_read(margins: Margins, draw: random.Random, names: list[str]) -> None:
    site = (("main",), len(names))
    margins[site] = Placement()


KINDS: dict[str, Callable[[Margins, random.Random, list[str]], None]] = {
    "missing wait": missing_wait,
    "wrong event": wrong_event,
    "event reused": event_reused,
    "early free": early_free,
    "host read": host_read,
}


@pytest.mark.parametrize("kind", KINDS)
def test_planted_faults_are_found(kind: str) -> None:
    found = 0
    for seed in range(10_000, 10_600):
        program, plan = correct(seed)
        margins = margins_of(program)
        names = [node.outputs[0].name for node in program.graph.nodes]
        if not any(each.waits for each in margins.values()):
            continue
        KINDS[kind](margins, random.Random(seed), names)
        planted = with_margins(program, margins)
        problems = validate(planted, plan).problems
        if wrong(launches(planted, plan)):
            assert problems, (kind, seed, planted.text())
            found += 1
        else:
            assert not any(each.kind in ("race", "freed") for each in problems), (kind, seed)
        if found == EACH:
            return
    raise AssertionError(f"only {found} of the planted faults are faults")


def test_early_reuse_is_found() -> None:
    """A value gets the bytes of another one before the last statement that reads it."""
    found = 0
    for seed in range(20_001, 20_401, 2):
        program, plan = correct(seed)
        assert plan is not None
        draw = random.Random(seed)
        (victim, there), (thief, place) = draw.sample(sorted(plan.places.items()), 2)
        if there.offset == place.offset:
            continue
        moved = {**plan.places, thief: replace(place, offset=there.offset, root=thief)}
        early = PlacedPlan(moved, plan.alignment)
        problems = validate(program, early).problems
        if wrong(launches(program, early)):
            assert any(each.kind == "race" for each in problems), seed
            found += 1
        if found == EACH:
            return
    raise AssertionError(f"only {found} of the planted faults are faults")
