"""The timeline of a schedule as a Chrome trace, and the statements that ran out of order.

A trace opens in Perfetto (https://ui.perfetto.dev) and in ``chrome://tracing``.  It has complete events ("X")
for statements, flow events ("s" and "f") for waits, and metadata ("M") for lanes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nncdbg.comparison.launches import PlacedPlan, launches
from nncdbg.comparison.schedule_problems import Party
from nncdbg.comparison.schedule_timeline import Times, planned
from nncdbg.engine.schedules.races import MOST_COMPARED, conflict, uses_of_bytes
from nncdbg.ir.records import Program
from nncdbg.ir.streams import Site, lanes

_INSIDE = 1e-3
"""How long before its end a statement has the beginning of an arrow, which must be inside of it."""


def timeline(program: Program, times: Times | None = None) -> list[dict[str, Any]]:
    """Return the events of a Chrome trace of `planned`, one lane per stream and one for the host.

    The `args` of a statement hold its block and number (`statement`), its line, and the events of its margin.
    """
    plan = planned(program, times)
    places = lanes(program)
    found = [_metadata("process_name", 0, program.source or "schedule")]
    found += [_metadata("thread_name", lane, title) for lane, title in places.values()]
    for at, launch in enumerate(plan.launches):
        start, duration = plan.spans[at]
        entry = {"ph": "X", "name": plan.name(at), "cat": "statement", "ts": start, "dur": duration}
        found.append({**entry, "pid": 1, "tid": places[launch.stream][0], "args": plan.arguments(at)})
    for number, wait in enumerate(plan.waits, 1):
        flow = {"name": f"e{wait.event}", "cat": "wait", "id": number, "pid": 1}
        (begun, lasted), (start, _) = plan.spans[wait.recorder], plan.spans[wait.waiter]
        ended = max(begun, begun + lasted - _INSIDE)
        recorder, _ = places[plan.launches[wait.recorder].stream]
        waiter, _ = places[plan.launches[wait.waiter].stream]
        found.append({"ph": "s", **flow, "ts": ended, "tid": recorder})
        found.append({"ph": "f", "bp": "e", **flow, "ts": start, "tid": waiter})
    return found


@dataclass(frozen=True, slots=True)
class OrderViolation:
    """Two statements that use the same bytes: the later one in the text began before the end of the other.

    `access` is ``write-read``, ``read-write`` or ``write-write`` in the order of the text, `early` the time
    in microseconds by which `second` began before the end of `first`.
    """

    first: Party
    second: Party
    access: str
    early: float


def order_violations(program: Program, plan: PlacedPlan | None, times: Times) -> list[OrderViolation]:
    """Return the pairs of measured statements that conflict and ran in another order than the text."""
    issued = launches(program, plan)
    found: dict[tuple[Site, Site], OrderViolation] = {}
    for uses in uses_of_bytes(issued):
        measured = [use for use in uses if issued[use.at].site in times][:MOST_COMPARED]
        for number, second in enumerate(measured):
            start = times[issued[second.at].site][0]
            for first in measured[:number]:
                begun, lasted = times[issued[first.at].site]
                if begun + lasted <= start or first.at == second.at:
                    continue
                if conflict(first.access, second.access):
                    parties = [
                        Party(issued[use.at].site, issued[use.at].stream, use.access.memory.name)
                        for use in (first, second)
                    ]
                    access = "-".join("write" if use.access.writes else "read" for use in (first, second))
                    violation = OrderViolation(parties[0], parties[1], access, begun + lasted - start)
                    found.setdefault((parties[0].site, parties[1].site), violation)
    return sorted(found.values(), key=lambda each: (each.second.site[1], each.first.site[1]))


def _metadata(kind: str, lane: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": 1, "tid": lane, "args": {"name": name}}
