"""Messages about memory plans: errors that no run shows, and what was not checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.played import Played
from nncdbg.engine.execution.check_results import NOT_CHECKED, CheckResult
from nncdbg.engine.memory.placed import PlacedAllocation
from nncdbg.engine.memory.plan_check import PlannedValue, PlanProblem, problems
from nncdbg.engine.memory.plan_file import PlacedPlan, Site, key_of
from nncdbg.engine.text.lexemes import name_text
from nncdbg.nan_watch.memory.wording import lines
from nncdbg.nan_watch.records import FindingSite as Line
from nncdbg.nan_watch.records import WatchFinding
from nncdbg.nan_watch.sites import site_of

_NAMED = 5
"""Most names of unchecked values in a list."""


@dataclass(frozen=True, slots=True)
class PlanFinding:
    """An error of a plan, and the affected values."""

    finding: WatchFinding
    sites: frozenset[Site]


def plan_problems(debugger: Debugger, plan: PlacedPlan, played: Played) -> Iterator[PlanFinding]:
    """Return the errors of a plan that are visible without following it."""
    for problem in problems(plan, debugger.loaded.codes, played.sizes, debugger.loaded.line):
        pair = [each for each in (problem.value, problem.other) if each is not None]
        yield PlanFinding(
            _problem(debugger, problem), frozenset((each.code.path, each.name) for each in pair)
        )


def _problem(debugger: Debugger, problem: PlanProblem) -> WatchFinding:
    value, other = problem.value, problem.other
    name, place = value.name, value.place
    first, last = problem.first, problem.last
    if problem.kind == "small":
        evidence = f"%{name_text(name)} needs {first} bytes, but its place has {last}"
        hint = "compute sizes from the type and shape at run time, and round them up"
    elif problem.kind == "misaligned":
        evidence = f"%{name_text(name)} is at byte {first}, which is not a multiple of {last}"
        hint = f"use a multiple of {last} as its offset"
    elif problem.kind == "outlived":
        begin, _ = lines(debugger, value.code, name)
        evidence = (
            f"%{name_text(name)} is live from line {begin} to line {last}; the plan frees "
            f"it after line {first}"
        )
        hint = f"keep %{name_text(name)} live until its last reader"
    else:
        assert other is not None
        evidence = _sharing(debugger, problem, other)
        hint = f"place %{name_text(other.name)} and %{name_text(name)} at different bytes"
    return WatchFinding(
        "plan",
        "birth",
        _defined(debugger, other if other is not None else value),
        cause="wrong plan",
        evidence=evidence,
        hint=hint
        if place.root == (value.code.path, name)
        else f"{hint}; %{name_text(name)} is an alias of %{name_text(place.root[1])}",
        other=None if other is None else _defined(debugger, value),
        reaches_output=False,
    )


def _sharing(debugger: Debugger, problem: PlanProblem, other: PlannedValue) -> str:
    lives = [
        "%{} (live from line {} to line {})".format(each.name, *lines(debugger, each.code, each.name))
        for each in (problem.value, other)
    ]
    shared = f"share bytes {problem.first}..{problem.last}"
    if problem.kind == "overlap":
        return f"{lives[0]} and {lives[1]} {shared}"
    op = other.code.nodes[other.live.definition].op
    return (
        f"{op} writes %{name_text(other.name)} over its operand {lives[0]} while it reads the "
        f"operand: they {shared}"
    )


def _defined(debugger: Debugger, value: PlannedValue) -> Line:
    """Return the statement that writes a value or passes it to a loop; for an input, the first statement."""
    code, pc = value.code, value.live.definition
    if pc >= 0:
        return site_of(code, pc, value.name, debugger)
    if code.parent is not None:
        return site_of(code.parent, int(code.path[-2]), value.name, debugger)
    return site_of(code, 0, value.name, debugger)


def left_out(debugger: Debugger, arena: PlacedAllocation) -> list[CheckResult]:
    """Return which values were in memory outside the plan, so that it was not checked for them."""
    found = []
    if arena.apart:
        names = _listed(arena.apart)
        found.append(_left(f"values without a place in the plan, which used separate memory: {names}"))
    if arena.beyond:
        names = _listed(arena.beyond)
        found.append(_left(f"values that do not fit in the arena, which used separate memory: {names}"))
    return found


def unrun(debugger: Debugger, plan: PlacedPlan, played: Played) -> list[CheckResult]:
    """Return the places whose statements did not run, as not checked."""
    missing = {site: None for site in plan.places if site not in played.sizes}
    inputs = {(name,): graph.inputs for name, graph in debugger.program.graphs.items()}
    for path, values in inputs.items():
        for value in values:
            missing.pop((path, value.name), None)
    if not missing:
        return []
    names = _listed(missing)
    words = f"places of values that were not computed in this run, so their readers are unknown: {names}"
    return [_left(words)]


def _left(words: str) -> CheckResult:
    return CheckResult("plan", NOT_CHECKED, words)


def _listed(sites: dict[Site, None]) -> str:
    names = [f"%{name_text(name)} of {key_of(path)}" for path, name in list(sites)[:_NAMED]]
    more = len(sites) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
