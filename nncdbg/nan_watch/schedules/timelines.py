"""The timeline of a schedule as a file, and the statements that ran in another order than the text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from nncdbg.engine.expression import spelled
from nncdbg.engine.memory.plan_file import PlacedPlan
from nncdbg.engine.schedules.launches import THE_HOST, stream_name
from nncdbg.engine.schedules.timeline import Times, order_violations, timeline
from nncdbg.ir.records import Program
from nncdbg.presentation.program_text import write_text
from nncdbg.presentation.schedules import ScheduleWording

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
