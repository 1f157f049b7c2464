"""Moments of a run (marks, checkpoints, edits, branches), and the streams of a program over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from nncdbg.dap_server.client_recorder import GOTO
from nncdbg.dap_server.handlers.stack import awaited
from nncdbg.dap_server.registry import LIVE, STOPPED, State, request
from nncdbg.engine.schedules.timeline import ScheduleTimeline, planned
from nncdbg.engine.time.checkpoints import Edit, edits_of
from nncdbg.engine.time.timeline import Mark
from nncdbg.errors import UsageError
from nncdbg.expression import spelled
from nncdbg.ir.streams import HOST, Site, stream_name, stream_states

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.compilation.code import Statement
    from nncdbg.engine.time.timeline import Branch

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


@dataclass(frozen=True, slots=True)
class TimelineMoment:
    """The moment after `tick` statements, before `at`; `name` of a mark, value or micro program."""

    kind: str
    tick: int
    at: Statement | None
    name: str | None = None


# -- marks -----------------------------------------------------------------------------------------


@request("nncdbg/marks", when=LIVE, arguments=MarksArguments)
def marks(session: Session, arguments: MarksArguments) -> dict[str, Any]:
    """Change or list marks; return the `name`, `statements`, `branch` and `here` of all `marks`."""
    debugger = session.program.debugger
    if arguments.action != "list":
        name = _mark_name(arguments.name, "name")
        if arguments.action == "set":
            debugger.mark(name)
            session.program.recorder.mark(name)
        elif arguments.action == "delete":
            debugger.timeline.forget_mark(name)
        elif arguments.action == "rename":
            debugger.timeline.rename_mark(name, _mark_name(arguments.to, "to"))
            session.program.recorder.marks -= {name, arguments.to}
        else:
            if session.state is not State.STOPPED:
                raise UsageError(session.state.value)
            command = f"goto {name}" if name in session.program.recorder.marks else GOTO
            _go_to(session, debugger.timeline.find_mark(name), command)
    now = debugger.timeline.branch, debugger.timeline.tick
    return {
        "marks": [
            {
                "name": name,
                "statements": mark.tick,
                "branch": mark.branch,
                "here": (mark.branch, mark.tick) == now,
            }
            for name, mark in debugger.timeline.marks.items()
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
    timeline = session.program.debugger.timeline
    branch = timeline.branch if arguments.branch is None else arguments.branch
    if branch not in timeline.branches:
        known = ", ".join(map(str, sorted(timeline.branches)[-10:]))
        raise UsageError(f"there is no branch {branch}", hint=f"use one of: {known}")
    if arguments.statements < 0:
        raise UsageError(f"`statements` cannot be {arguments.statements}", hint="use 0 or more")
    _go_to(session, Mark("", branch, arguments.statements), GOTO)


def _go_to(session: Session, mark: Mark, command: str) -> None:
    debugger = session.program.debugger
    session.program.move(session, lambda: debugger.go_to(mark), command, unasked=True)


# -- the whole timeline ----------------------------------------------------------------------------


@request("nncdbg/timeline", when=LIVE, values=True, arguments=TimelineArguments, reads=True)
def timeline(session: Session, arguments: TimelineArguments) -> dict[str, Any]:
    """Return the `branches`, current branch first.

    Each branch has `number`, `title`, `parent`, `since`, `current`, `leftOut` and `moments`.  Each moment
    has `kind`, `statements`, `name`, `line`, `text` and `graph`.  `kind` is `start`, `checkpoint`, `micro`,
    `edit`, `mark`, `left` or `now`.
    """
    known = session.program.debugger.timeline
    numbers = [known.branch, *(each for each in sorted(known.branches, reverse=True) if each != known.branch)]
    room, branches = MOST_MOMENTS, []
    for number in numbers[:MOST_BRANCHES]:
        session.queue.check_cancelled()
        branch = known.branches[number]
        found = sorted(_moments(session, branch), key=lambda each: (each.tick, _ORDER.index(each.kind)))
        kept = _latest(found, room)
        room -= len(kept)
        branches.append(
            {
                "number": number,
                "title": _shortened(branch.title),
                "parent": branch.parent,
                "since": branch.tick,
                "current": number == known.branch,
                "moments": [_moment_fields(session, each) for each in kept],
                "leftOut": len(found) - len(kept),
            }
        )
    return {"branches": branches, "leftOut": len(numbers) - len(branches)}


def _latest(found: Sequence[TimelineMoment], room: int) -> list[TimelineMoment]:
    """The latest moments, up to `room`; always including the branch's current position."""
    standing = next(each for each in found if each.kind in ("now", "left"))
    kept = [*found[max(0, len(found) - room) :]]
    return kept if standing in kept else [standing, *kept[1:]]


def _moments(session: Session, branch: Branch) -> Iterator[TimelineMoment]:
    """The moments of a branch itself, without those of its parent."""
    known = session.program.debugger.timeline
    following, checkpoints, edits = known.state_of(branch)
    if branch.parent is None:
        yield TimelineMoment("start", 0, checkpoints[0].next_statement)
    for state in checkpoints[1:]:
        if state.tick > branch.tick:
            yield TimelineMoment("checkpoint", state.tick, state.next_statement)
    of_parent = () if branch.parent is None else known.state_of(known.branches[branch.parent])[2]
    inherited = {id(each.changes) for each in edits_of(of_parent)}
    for edit in edits:
        if isinstance(edit, Edit):
            if id(edit.changes) not in inherited:
                yield TimelineMoment("edit", edit.tick, edit.at, spelled(edit.name))
        elif edit.tick > branch.tick:
            yield TimelineMoment("micro", edit.tick, None, str(edit.code.graph.name))
    for mark in known.marks.values():
        if mark.branch == branch.number:
            yield TimelineMoment("mark", mark.tick, mark.at, mark.name)
    yield TimelineMoment("now" if branch.saved is None else "left", known.tick_on(branch), following)


def _moment_fields(session: Session, moment: TimelineMoment) -> dict[str, Any]:
    fields: dict[str, Any] = {"kind": moment.kind, "statements": moment.tick}
    if moment.name is not None:
        # In full: `goto` identifies a mark by its name.
        fields["name"] = moment.name
    if moment.at is not None:
        debugger, code, pc = session.program.debugger, moment.at.code, moment.at.pc
        listing = debugger.loaded.listing_of(code)
        line = listing.line(code.path, pc)
        fields["line"] = session.client.outgoing_line(line)
        fields["text"] = _shortened(listing.lines[line - 1].strip())
        fields["graph"] = _shortened(code.graph.name)
    return fields


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


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
    states = stream_states(debugger.program, frame.code.graph, frame.pc)
    waits = {state.number: awaited(state) for state in session.program.target.streams()}
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
                name = graph.nodes[pc].called
                if name is not None and name in graphs:
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
