"""Moments of a run (marks, checkpoints, edits, branches), and the streams of a program over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from nncdbg.comparison.schedule_timeline import ScheduleTimeline, planned
from nncdbg.dap_server.client_recorder import GOTO
from nncdbg.dap_server.handlers.stack import awaited
from nncdbg.dap_server.registry import LIVE, STOPPED, State, request
from nncdbg.errors import UsageError
from nncdbg.expression import spelled
from nncdbg.ir.streams import HOST, Site, stream_name
from nncdbg.target.records import Moment

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.ir.records import Program
    from nncdbg.target.program import ProgramTarget
    from nncdbg.target.records import Times
    from nncdbg.target.target import Target

MOST_MOMENTS = 300
"""Moments of one answer: those of the current branch first, the latest of each branch."""

MOST_BRANCHES = 100
"""Branches of one answer: the current one and the latest."""

LONGEST = 120
"""Characters of a statement, and of a name."""

_ORDER = ("start", "checkpoint", "micro", "edit", "mark", "left", "now")
"""Order of moments after the same number of statements."""


class MarksArguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    action: Literal["list", "set", "goto", "delete", "rename"] = "list"
    name: str | None = None
    to: str | None = None


class TimelineArguments(msgspec.Struct, frozen=True, kw_only=True):
    """No arguments."""


class MomentArguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`branch` is the current one by default."""

    statements: int
    branch: int | None = None


# -- marks -----------------------------------------------------------------------------------------


@request("nncdbg/marks", when=LIVE, arguments=MarksArguments)
def marks(session: Session, arguments: MarksArguments) -> dict[str, Any]:
    """Change or list marks; return the `name`, `statements`, `branch` and `here` of all `marks`."""
    target, recorder = session.program.target, session.program.recorder
    if arguments.action != "list":
        name = _mark_name(arguments.name, "name")
        if arguments.action == "set":
            target.mark(name)
            recorder.mark(name)
        elif arguments.action == "delete":
            target.mark(name, "")
        elif arguments.action == "rename":
            target.mark(name, _mark_name(arguments.to, "to"))
            recorder.marks -= {name, arguments.to}
        else:
            if session.state is not State.STOPPED:
                raise UsageError(session.state.value)
            # The error about an unknown mark answers the request.
            target.mark(name, name)
            _go_to(session, target.marks[name], f"goto {name}" if name in recorder.marks else GOTO)
    now = target.now
    return {
        "marks": [
            {
                "name": name,
                "statements": mark.tick,
                "branch": mark.branch,
                "here": (mark.branch, mark.tick) == (now.branch, now.tick),
            }
            for name, mark in target.marks.items()
        ]
    }


def _mark_name(name: str | None, key: str) -> str:
    if not name:
        raise UsageError("a mark needs a name", hint=f"pass it as `{key}`")
    return name


# -- moving ----------------------------------------------------------------------------------------


@request("nncdbg/moment", when=STOPPED, arguments=MomentArguments, moves=True)
def moment(session: Session, arguments: MomentArguments) -> None:
    """Go back or forward to this moment; the server sends `continued` and `stopped`."""
    target = session.program.target
    branches = target.branches
    branch = target.now.branch if arguments.branch is None else arguments.branch
    if branch not in branches:
        latest = ", ".join(map(str, sorted(branches)[-10:]))
        raise UsageError(f"there is no branch {branch}", hint=f"use one of: {latest}")
    if arguments.statements < 0:
        raise UsageError(f"`statements` cannot be {arguments.statements}", hint="use 0 or more")
    _go_to(session, Moment(branch, arguments.statements), GOTO)


def _go_to(session: Session, moment: Moment, command: str) -> None:
    target = session.program.target
    session.program.move(session, lambda: target.go_to(moment), command, unasked=True)


# -- the whole timeline ----------------------------------------------------------------------------


@request("nncdbg/timeline", when=LIVE, values=True, arguments=TimelineArguments, reads=True)
def timeline(session: Session, arguments: TimelineArguments) -> dict[str, Any]:
    """Return the `branches`, current branch first.

    Each branch has `number`, `title`, `parent`, `since`, `current`, `leftOut` and `moments`.  Each moment
    has `kind`, `statements`, `name`, `line`, `text` and `graph`.  `kind` is `start`, `checkpoint`, `micro`,
    `edit`, `mark`, `left` or `now`.
    """
    target = session.program.target
    current, branches = target.now.branch, target.branches
    numbers = [current, *(number for number in sorted(branches, reverse=True) if number != current)]
    room, shown = MOST_MOMENTS, []
    for number in numbers[:MOST_BRANCHES]:
        session.queue.check_cancelled()
        branch = branches[number]
        moments = sorted(target.moments(number), key=lambda moment: (moment.tick, _ORDER.index(moment.kind)))
        kept = _latest(moments, room)
        room -= len(kept)
        shown.append(
            {
                "number": number,
                "title": _shortened(branch.title),
                "parent": branch.parent,
                "since": branch.since,
                "current": branch.current,
                "moments": [_moment_fields(session, moment) for moment in kept],
                "leftOut": len(moments) - len(kept),
            }
        )
    return {"branches": shown, "leftOut": len(numbers) - len(shown)}


def _latest(moments: Sequence[Moment], room: int) -> list[Moment]:
    """The latest moments, up to `room`; always including the branch's current position."""
    standing = next(moment for moment in moments if moment.kind in ("now", "left"))
    kept = [*moments[max(0, len(moments) - room) :]]
    return kept if standing in kept else [standing, *kept[1:]]


def _moment_fields(session: Session, moment: Moment) -> dict[str, Any]:
    fields: dict[str, Any] = {"kind": moment.kind, "statements": moment.tick}
    if moment.name:
        # In full: `goto` identifies a mark by its name.
        fields["name"] = moment.name
    place = moment.place
    if place is not None:
        fields["line"] = session.client.outgoing_line(place.line)
        fields["text"] = _shortened(place.text)
        fields["graph"] = _shortened(place.graph.name)
    return fields


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


MOST_STATEMENTS = 2000
"""Statements of one answer: those around the current one."""


class StreamsArguments(msgspec.Struct, frozen=True, kw_only=True):
    """No arguments."""


@request("nncdbg/streams", when=LIVE, values=True, arguments=StreamsArguments, reads=True)
def streams(session: Session, arguments: StreamsArguments) -> dict[str, Any]:
    """Return the streams over time: `lanes`, `statements`, `waits`, `races`, `source`, `measured`, `leftOut`.

    The first lane is the host.  Each lane has `name`, `device` and `waits` (the events that its next
    statement waits for).  Each statement has `lane`, `start`, `duration`, `name`, `line`, `events` and
    `state`.  `state` is `current`, `next` (of its stream) or empty.  Each wait is `[event, from, to]`:
    positions in `statements`; each race is `[access, value, first, second]`.  If `measured` is true, times
    are median microseconds of kernels; otherwise each statement takes one unit.  `leftOut` is the number of
    statements that are not shown.
    """
    target = session.program.target
    # A micro program is inside a statement of the schedule.
    frame = next(frame for frame in target.frames() if frame.place.micro is None)
    times = target.times()
    measured = times.on and bool(times.executed)
    timeline = _timeline(target.program, times if measured else None)
    states = target.streams(frame.number)
    waits = {state.number: awaited(state) for state in states}
    following = {(state.place.path, state.place.pc) for state in states if state.place is not None}
    current = _current(target, {launch.site for launch in timeline.launches})
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
        "races": list(_races(target, timeline, shown)),
    }


def _races(target: ProgramTarget, timeline: ScheduleTimeline, shown: range) -> Iterator[list[Any]]:
    """Yield the races between shown statements: the accesses, the value, and the positions of both."""
    positions = {timeline.launches[at].site: at - shown.start for at in reversed(shown)}
    for race in target.races:
        first = positions.get(race.first.site) if race.first is not None else None
        second = positions.get(race.second.site)
        if first is not None and second is not None:
            yield [race.access, spelled(race.second.name), first, second]


def _timeline(program: Program, times: Times | None) -> ScheduleTimeline:
    """Return the timeline of the program, with the measured times of its statements if there are any."""
    if times is not None:
        medians = {(each.place.path, each.place.pc): each.median / 1e3 for each in times.statements}
        return planned(program, durations=medians)
    if "timeline" not in program.kept:
        program.kept["timeline"] = planned(program)
    timeline: ScheduleTimeline = program.kept["timeline"]
    return timeline


def _current(target: Target, sites: set[Site]) -> Site:
    """Return the next statement with a launch: calls, and ends of graphs without a margin, have none."""
    places = [frame.place for frame in target.frames() if frame.place.micro is None]
    graphs = target.program.graphs
    for depth, place in enumerate(places):
        # An outer frame is inside its statement.
        ahead = [(place.graph, place.path, place.pc + bool(depth))]
        while ahead:
            graph, path, pc = ahead.pop()
            if (path, pc) in sites:
                return path, pc
            if pc < len(graph.nodes):
                ahead.append((graph, path, pc + 1))
                name = graph.nodes[pc].called
                if name is not None and name in graphs:
                    ahead.append((graphs[name], (name,), 0))
    return places[-1].path, places[-1].pc


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
