"""Adds the smallest edges that order races: an event after one statement, and a wait before another."""

from __future__ import annotations

from dataclasses import replace

from nncdbg.engine.memory.plan_file import PlacedPlan
from nncdbg.engine.schedules.launches import Site
from nncdbg.engine.schedules.margins import margins_of, with_margins
from nncdbg.engine.schedules.validation import validate
from nncdbg.ir.records import Placement, Program

ROUNDS = 20
"""How often the schedule is checked again; an edge may order more than one race."""


def mended(program: Program, plan: PlacedPlan | None = None) -> Program:
    """Return a program whose schedule has no race, with the bytes of a memory plan.

    The order in which the host issues the statements stays.  Races that no event of this order can end
    remain, such as those with a statement that waits before the record of an earlier iteration.
    """
    for _ in range(ROUNDS):
        edges = {}
        for problem in validate(program, plan).problems:
            if problem.repair is not None:
                edges[problem.repair.recorder.site, problem.repair.waiter.site] = problem.repair.event
        if not edges:
            break
        changed = with_edges(program, edges)
        if changed == program:
            break
        program = changed
    return program


def with_edges(program: Program, edges: dict[tuple[Site, Site], int | None]) -> Program:
    """Return a program in which one statement waits for another, by an event: for None, a new one."""
    margins = margins_of(program)
    latest = max((event for margin in margins.values() for event in margin.records), default=0)
    made: dict[Site, int] = {}
    for (recorder, waiter), event in edges.items():
        if event is None:
            if recorder not in made:
                latest += 1
                made[recorder] = latest
                before = margins.get(recorder, Placement())
                margins[recorder] = replace(before, records=(*before.records, latest))
            event = made[recorder]
        before = margins.get(waiter, Placement())
        if event not in before.waits:
            margins[waiter] = replace(before, waits=(*before.waits, event))
    return with_margins(program, margins)
