"""The timeline of a schedule as a Chrome trace, and the statements that ran out of order.

A trace opens in Perfetto (https://ui.perfetto.dev) and in ``chrome://tracing``.  It has complete events ("X")
for statements, flow events ("s" and "f") for waits, and metadata ("M") for lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from nncdbg.comparison.schedule_problems import Party
from nncdbg.engine.memory.plan_file import PlacedPlan
from nncdbg.engine.schedules.launches import Launch, launches
from nncdbg.engine.schedules.races import MOST_COMPARED, conflict, uses_of_bytes
from nncdbg.expression import spelled
from nncdbg.ir.records import Graph, Node, Program
from nncdbg.ir.streams import HOST, Site, lanes, streams_of
from nncdbg.ir.walk import block_at, node_at
from nncdbg.text.listing import Listing

Times: TypeAlias = "Mapping[Site, tuple[float, float]]"
"""The start and duration of statements in microseconds."""

UNIT = 1.0
"""The duration of a statement, in microseconds, in the timeline of a schedule that has not been measured."""

_INSIDE = 1e-3
"""How long before its end a statement has the beginning of an arrow, which must be inside of it."""


@dataclass(frozen=True, slots=True)
class TimelineWait:
    """A wait for an event: the numbers of the launches that record it and that wait for it."""

    event: int
    recorder: int
    waiter: int


@dataclass(frozen=True, eq=False)
class ScheduleTimeline:
    """The launches of a scheduled program over time, in microseconds.

    `streams` are the devices of the streams by number, "" for one without a name.  `spans` are the start and
    duration of each launch.
    """

    program: Program
    launches: Sequence[Launch]
    streams: Mapping[int, str]
    spans: Sequence[tuple[float, float]]
    waits: Sequence[TimelineWait]

    @cached_property
    def listing(self) -> Listing:
        """The lines of the program."""
        return self.program.as_listing()

    def name(self, at: int) -> str:
        """Return the result and op of a launch, such as `%h MatMul`, or `main end`."""
        launch = self.launches[at]
        node, block = self._statement(launch.site)
        if node is None:
            return f"{block.name or launch.site[0][0]} {launch.edge or 'end'}"
        named = node.outputs[0].name if node.outputs else ""
        return f"{spelled(named)} {node.op}" if named else node.op

    def line(self, at: int) -> int:
        """Return the line of a launch in the listing."""
        path, pc = self.launches[at].site
        return self.listing.headers[path] if pc < 0 else self.listing.line(path, pc)

    def arguments(self, at: int) -> dict[str, Any]:
        """Return what a Chrome trace shows of a launch: its block and number, line, source and events."""
        launch = self.launches[at]
        path, pc = launch.site
        found: dict[str, Any] = {"statement": f"{'/'.join(map(str, path))}#{pc}", "line": self.line(at)}
        node, _ = self._statement(launch.site)
        if node is not None and node.location is not None:
            found["source"] = str(node.location)
        if launch.waits:
            found["wait"] = [f"e{event}" for event in launch.waits]
        if launch.records:
            found["record"] = [f"e{event}" for event in launch.records]
        return found

    def _statement(self, site: Site) -> tuple[Node | None, Graph]:
        """Return the statement of a site, None for the first or last line of a graph, and its block."""
        path, pc = site
        return node_at(self.program, path, pc), block_at(self.program, path)


def planned(
    program: Program, times: Times | None = None, durations: Mapping[Site, float] | None = None
) -> ScheduleTimeline:
    """Return the timeline of a scheduled program.

    With `times`, statements are where they were measured, and the others begin when all that they wait for
    has ended.  Without, statements begin as early as the schedule allows, and take their `durations` in
    microseconds, 0 for one that is missing; without `durations`, all take the same time.
    """
    issued = launches(program)
    recorder: dict[int, int] = {}
    waits = []
    for at, launch in enumerate(issued):
        waits += [TimelineWait(event, recorder[event], at) for event in launch.waits if event in recorder]
        recorder.update(dict.fromkeys(launch.records, at))
    spans = _spans(issued, times, durations)
    devices = {stream: program.streams.get(stream, "") for stream in streams_of(program) if stream != HOST}
    return ScheduleTimeline(program, issued, devices, spans, waits)


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


def _spans(
    issued: Sequence[Launch], times: Times | None, durations: Mapping[Site, float] | None
) -> list[tuple[float, float]]:
    """Return the start and duration of each launch."""
    found: list[tuple[float, float]] = []
    idle: dict[int, float] = {}
    events: dict[int, float] = {}
    missing = UNIT if times is None and durations is None else 0.0
    known = durations or {}
    earliest = min((start for start, _ in times.values()), default=0.0) if times else 0.0
    for launch in issued:
        ready = [earliest, idle.get(launch.stream, 0.0), idle.get(HOST, 0.0)]
        ready += [events[event] for event in launch.waits if event in events]
        ready += idle.values() if launch.barrier else []
        start, duration = max(ready), known.get(launch.site, missing)
        if times is not None and launch.site in times:
            start, duration = times[launch.site]
        found.append((start, duration))
        for stream in launch.begins:
            idle[stream] = max(idle.get(stream, 0.0), start)
        idle[launch.stream] = start + duration
        events.update(dict.fromkeys(launch.records, start + duration))
    return found


def _metadata(kind: str, lane: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": 1, "tid": lane, "args": {"name": name}}
