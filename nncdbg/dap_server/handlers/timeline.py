"""Moments of a run: the current one, marks, checkpoints, edits, and the branches that they began."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from nncdbg.dap_server.client_recorder import GOTO
from nncdbg.dap_server.registry import LIVE, STOPPED, State, request
from nncdbg.engine.errors import UsageError
from nncdbg.engine.expression import spelled
from nncdbg.engine.time.deviations import Edit, edits_of
from nncdbg.engine.time.timeline import Mark

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.compilation.code import Statement
    from nncdbg.engine.time.deviations import Deviation
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
    return {"marks": [_mark(session, name) for name in debugger.timeline.marks]}


def _mark_name(name: str | None, key: str) -> str:
    if not name:
        raise UsageError("a mark needs a name", hint=f"pass it as `{key}`")
    return name


def _mark(session: Session, name: str) -> dict[str, Any]:
    timeline = session.program.debugger.timeline
    mark = timeline.marks[name]
    here = mark.branch == timeline.branch and mark.tick == timeline.tick
    return {"name": name, "statements": mark.tick, "branch": mark.branch, "here": here}


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
    inherited = {id(each.changes) for each in edits_of(_edits_of_parent(session, branch))}
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


def _edits_of_parent(session: Session, branch: Branch) -> Sequence[Deviation]:
    known = session.program.debugger.timeline
    if branch.parent is None:
        return ()
    return known.state_of(known.branches[branch.parent])[2]


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
