"""The timeline of a schedule as a Chrome trace, and the statements that ran out of order.

A trace opens in Perfetto (https://ui.perfetto.dev) and in ``chrome://tracing``.  It has complete events ("X")
for statements, flow events ("s" and "f") for waits, and metadata ("M") for lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from nncdbg.engine.graph import Graph, Node, Program
from nncdbg.engine.memory.plan_file import PlacedPlan
from nncdbg.engine.schedules.launches import HOST, Launch, Site, launches
from nncdbg.engine.schedules.races import MOST_COMPARED, conflict, uses_of_bytes
from nncdbg.engine.schedules.streams import lanes
from nncdbg.engine.schedules.validation import Party

Times: TypeAlias = "Mapping[Site, tuple[float, float]]"
"""The start and duration of statements in microseconds."""

UNIT = 1.0
"""The duration of a statement, in microseconds, in the timeline of a schedule that has not been measured."""

_INSIDE = 1e-3
"""How long before its end a statement has the beginning of an arrow, which must be inside of it."""


def timeline(program: Program, times: Times | None = None) -> list[dict[str, Any]]:
    """Return the events of a Chrome trace of a scheduled program, one lane per stream and one for the host.

    With `times`, statements are where they were measured, and the others begin when all that they wait for
    has ended.  Without, all statements take the same time, and begin as early as the schedule allows.  The
    `args` of a statement hold its block and number (`statement`), its line, and the events of its margin.
    """
    issued = launches(program)
    spans = _spans(issued, times)
    places = lanes(program)
    found = [_metadata("process_name", 0, program.source or "schedule")]
    found += [_metadata("thread_name", lane, title) for lane, title in places.values()]
    recorder: dict[int, int] = {}
    arrows = 0
    lines = _Lines(program)
    for at, launch in enumerate(issued):
        start, duration = spans[at]
        common = {"pid": 1, "tid": places[launch.stream][0]}
        entry = {"ph": "X", "name": lines.name(launch), "cat": "statement", "ts": start, "dur": duration}
        found.append({**entry, **common, "args": lines.arguments(launch)})
        for event in launch.waits:
            if event not in recorder:
                continue
            source = recorder[event]
            arrows += 1
            begun, lasted = spans[source]
            flow = {"name": f"e{event}", "cat": "wait", "id": arrows}
            lane, _ = places[issued[source].stream]
            left = {"ts": max(begun, begun + lasted - _INSIDE), "pid": 1, "tid": lane}
            found.append({"ph": "s", **flow, **left})
            found.append({"ph": "f", "bp": "e", **flow, "ts": start, **common})
        for event in launch.records:
            recorder[event] = at
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


def _spans(issued: Sequence[Launch], times: Times | None) -> list[tuple[float, float]]:
    """Return the start and duration of each launch."""
    found: list[tuple[float, float]] = []
    idle: dict[int, float] = {}
    events: dict[int, float] = {}
    missing = UNIT if times is None else 0.0
    earliest = min((start for start, _ in times.values()), default=0.0) if times else 0.0
    for launch in issued:
        ready = [earliest, idle.get(launch.stream, 0.0), idle.get(HOST, 0.0)]
        ready += [events[event] for event in launch.waits if event in events]
        ready += idle.values() if launch.barrier else []
        start, duration = max(ready), missing
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


class _Lines:
    """The names, lines and margins of launches."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.listing = program.as_listing()

    def name(self, launch: Launch) -> str:
        path, pc = launch.site
        block = self._block(launch.site)
        if not 0 <= pc < len(block.nodes):
            return f"{block.name or path[0]} {launch.edge or 'end'}"
        node = block.nodes[pc]
        named = _named(node)
        return f"%{named} {node.op}" if named else node.op

    def arguments(self, launch: Launch) -> dict[str, Any]:
        path, pc = launch.site
        line = self.listing.headers[path] if pc < 0 else self.listing.line(path, pc)
        found: dict[str, Any] = {"statement": f"{'/'.join(map(str, path))}#{pc}", "line": line}
        block = self._block(launch.site)
        if 0 <= pc < len(block.nodes) and (location := block.nodes[pc].location) is not None:
            found["source"] = str(location)
        if launch.waits:
            found["wait"] = [f"e{event}" for event in launch.waits]
        if launch.records:
            found["record"] = [f"e{event}" for event in launch.records]
        return found

    def _block(self, site: Site) -> Graph:
        path, _ = site
        graph = self.program.graphs[str(path[0])]
        for at in range(1, len(path), 2):
            graph = graph.nodes[int(path[at])].subgraphs[int(path[at + 1])]
        return graph


def _named(node: Node) -> str:
    return node.outputs[0].name if node.outputs else ""
