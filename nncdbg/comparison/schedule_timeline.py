"""The launches of a scheduled program over time: planned by the schedule, or as they were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from nncdbg.comparison.launches import Launch, launches
from nncdbg.expression import spelled
from nncdbg.ir.records import Graph, Node, Program
from nncdbg.ir.streams import HOST, Site, streams_of
from nncdbg.ir.walk import block_at, node_at
from nncdbg.text.listing import Listing

Times: TypeAlias = "Mapping[Site, tuple[float, float]]"
"""The start and duration of statements in microseconds."""

UNIT = 1.0
"""The duration of a statement, in microseconds, in the timeline of a schedule that has not been measured."""


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
