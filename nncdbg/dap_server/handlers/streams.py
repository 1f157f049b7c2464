"""The streams of a program over time, for the tab with their timeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from nncdbg.dap_server.registry import LIVE, request
from nncdbg.dap_server.stream_threads import awaited
from nncdbg.engine.schedules.launches import HOST, Site, stream_name
from nncdbg.engine.schedules.streams import stream_states
from nncdbg.engine.schedules.timeline import ScheduleTimeline, planned

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session

MOST_STATEMENTS = 2000
"""Statements of one answer: those around the current one."""


class StreamsArguments(msgspec.Struct, frozen=True, kw_only=True):
    """No arguments."""


@request("nncdbg/streams", when=LIVE, values=True, arguments=StreamsArguments, reads=True)
def streams(session: Session, arguments: StreamsArguments) -> dict[str, Any]:
    """Return the streams over time: `lanes`, `statements`, `waits`, `source`, `measured` and `leftOut`.

    The first lane is the host.  Each lane has `name`, `device` and `waits` (the events that its next
    statement waits for).  Each statement has `lane`, `start`, `duration`, `name`, `line`, `events` and
    `state`.  `state` is `current`, `next` (of its stream) or empty.  Each wait is `[event, from, to]`:
    positions in `statements`.  If `measured` is true, times are median microseconds of kernels; otherwise
    each statement takes one unit.  `leftOut` is the number of statements that are not shown.
    """
    debugger = session.program.debugger
    # A micro program is inside a statement of the schedule.
    frame = next(each for each in reversed(debugger.control.stack) if each.code.formula is None)
    measured = debugger.times.on and bool(debugger.times.executed)
    timeline = _timeline(session, measured)
    states = stream_states(debugger.program, frame.code, frame.pc)
    waits = {state.number: awaited(session, frame.code, state) for state in states}
    following = {(frame.code.path, state.pc) for state in states if state.pc is not None}
    current = _current(session, {launch.site for launch in timeline.launches})
    shown = _shown(timeline, current)
    lanes = {HOST: 0, **{stream: at for at, stream in enumerate(timeline.streams, 1)}}
    return {
        "source": session.program.sources.of_program,
        "measured": measured,
        "leftOut": len(timeline.launches) - len(shown),
        "lanes": [
            {
                "name": stream_name(stream),
                "device": timeline.streams.get(stream, ""),
                "waits": waits.get(stream, []),
            }
            for stream in lanes
        ],
        "statements": [
            _statement(session, timeline, at)
            | {"lane": lanes[timeline.launches[at].stream]}
            | {"state": _state(timeline.launches[at].site, current, following)}
            for at in shown
        ],
        "waits": [
            [f"e{wait.event}", wait.recorder - shown.start, wait.waiter - shown.start]
            for wait in timeline.waits
            if wait.recorder in shown and wait.waiter in shown
        ],
    }


def _timeline(session: Session, measured: bool) -> ScheduleTimeline:
    """Return the timeline of the program, with the measured times of its statements if there are any."""
    debugger = session.program.debugger
    if measured:
        times = debugger.times.statements.items()
        return planned(debugger.program, durations={site: each.kernel.median / 1e3 for site, each in times})
    kept = debugger.program.kept
    if "timeline" not in kept:
        kept["timeline"] = planned(debugger.program)
    timeline: ScheduleTimeline = kept["timeline"]
    return timeline


def _current(session: Session, sites: set[Site]) -> Site:
    """Return the next statement with a launch: calls, and ends of graphs without a margin, have none."""
    frames = [each for each in session.program.debugger.control.stack if each.code.formula is None]
    graphs = session.program.debugger.program.graphs
    for depth, frame in enumerate(reversed(frames)):
        # An outer frame is inside its statement.
        ahead = [(frame.code.graph, frame.code.path, frame.pc + bool(depth))]
        while ahead:
            graph, path, pc = ahead.pop()
            if (path, pc) in sites:
                return path, pc
            if pc < len(graph.nodes):
                ahead.append((graph, path, pc + 1))
                name = graph.nodes[pc].op.removeprefix("@")
                if name in graphs:
                    ahead.append((graphs[name], (name,), 0))
    return frames[0].code.path, frames[0].pc


def _shown(timeline: ScheduleTimeline, current: Site) -> range:
    """Return the numbers of the launches of one answer, around the first one of the current statement."""
    count = len(timeline.launches)
    sites: Sequence[Site] = [launch.site for launch in timeline.launches]
    middle = sites.index(current) if current in sites else 0
    first = max(0, min(middle - MOST_STATEMENTS // 2, count - MOST_STATEMENTS))
    return range(first, min(count, first + MOST_STATEMENTS))


def _state(site: Site, current: Site, following: set[Site]) -> str:
    if site == current:
        return "current"
    return "next" if site in following else ""


def _statement(session: Session, timeline: ScheduleTimeline, at: int) -> dict[str, Any]:
    start, duration = timeline.spans[at]
    launch = timeline.launches[at]
    events = [f"wait e{event}" for event in launch.waits] + [f"record e{event}" for event in launch.records]
    return {
        "name": timeline.name(at),
        "line": session.client.outgoing_line(timeline.line(at)),
        "start": start,
        "duration": duration,
        "events": events,
    }
