"""The problems of a schedule as findings, its timeline as a file, and notes about the order of its run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from nncdbg.comparison.check_results import PASSED, CheckResult
from nncdbg.comparison.launches import PlacedPlan
from nncdbg.comparison.schedule_problems import Party, ScheduleProblem, Validation
from nncdbg.comparison.schedule_timeline import Times
from nncdbg.engine.execution.findings import RACE
from nncdbg.engine.schedules.timeline import order_violations, timeline
from nncdbg.engine.schedules.validation import validate, validated
from nncdbg.expression import spelled
from nncdbg.ir.records import Program
from nncdbg.ir.streams import THE_HOST, stream_name
from nncdbg.nan_watch.records import FindingSite, Report, WatchFinding
from nncdbg.opening.program_text import write_text
from nncdbg.presentation.schedules import ScheduleWording
from nncdbg.text.counting import counted


def schedule_findings(
    program: Program, plan: PlacedPlan | None = None, *, depth: int | None = None
) -> tuple[list[WatchFinding], Validation]:
    """Return the findings of the schedule of a program in the order of the text, and what was checked."""
    bare = plan is None and depth is None
    validation = validated(program) if bare else validate(program, plan, depth=depth)
    if not validation.problems:
        return [], validation
    wording = ScheduleWording(program)
    return [_finding(each, wording) for each in validation.problems], validation


def schedule_report(
    program: Program,
    plan: PlacedPlan | None = None,
    *,
    depth: int | None = None,
    model: str = "",
    unchecked: Sequence[CheckResult] = (),
) -> Report:
    """Return the report of a schedule; its `ops` are the launches that were checked.

    `unchecked` is what cannot be checked, because the log of the schedule does not contain it.
    """
    started = time.perf_counter()
    findings, validation = schedule_findings(program, plan, depth=depth)
    report = Report(model, validation.launches, time.perf_counter() - started, findings)
    report.counts["birth"] = len(findings)
    left = {each.check for each in unchecked}
    report.results = [
        *unchecked,
        *(CheckResult(kind, PASSED) for kind in (RACE, "schedule") if kind not in left),
    ]
    streams, events = counted(validation.streams, "stream"), counted(validation.events, "event")
    deepest = "1 launch" if validation.depth == 1 else f"{validation.depth} launches"
    report.notes.append(f"{streams}, {events}, at most {deepest} of a stream in flight")
    return report


def _finding(problem: ScheduleProblem, wording: ScheduleWording) -> WatchFinding:
    words = wording.explanation(problem)
    return WatchFinding(
        "race" if problem.kind == "race" else "schedule",
        "birth",
        schedule_site(problem.second, wording),
        cause=words.cause,
        evidence=words.evidence,
        hint=words.hint,
        other=None if problem.first is None else schedule_site(problem.first, wording),
        trips=True,
    )


def schedule_site(party: Party, wording: ScheduleWording) -> FindingSite:
    """Return the location of a statement of a schedule, or of the first or last line of a graph."""
    block, pc = wording.block(party.site)
    line = wording.line(party.site)
    text = wording.listing.statement(line).strip()
    graph = block.name or str(party.site[0][0])
    if not 0 <= pc < len(block.nodes):
        return FindingSite(line, graph, "", "graph" if pc < 0 else "return", party.name, text=text)
    node = block.nodes[pc]
    scratch = node.placement is not None and party.name == node.placement.workspace
    value = "" if scratch else party.name
    if not value and node.outputs:
        value = node.outputs[0].name
    return FindingSite.of(line, graph, node, value, text)


MOST_NOTED = 10


def write_timeline(file: str, program: Program, times: Times | None) -> None:
    """Write a Chrome trace of the schedule of a program; raises UsageError if the file cannot be written."""
    document = {"displayTimeUnit": "ms", "traceEvents": timeline(program, times or None)}
    write_text(Path(file), msgspec.json.encode(document).decode() + "\n")


def violation_notes(program: Program, plan: PlacedPlan | None, times: Times) -> Iterator[str]:
    """Yield a sentence for each pair of conflicting statements that ran in another order than the text."""
    found = order_violations(program, plan, times) if times else []
    wording = ScheduleWording(program)
    for each in found[:MOST_NOTED]:
        first, second = (
            f"line {wording.line(party.site)} on {stream_name(party.stream, THE_HOST)}"
            for party in (each.first, each.second)
        )
        yield (
            f"order violation: {second} began {each.early:.3g} us before the end of {first}, although they "
            f"conflict over {spelled(each.first.name)} ({each.access})"
        )
    if len(found) > MOST_NOTED:
        yield f"{len(found) - MOST_NOTED} more order violations"
