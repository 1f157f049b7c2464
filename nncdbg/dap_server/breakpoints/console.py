"""Reports to the client of breakpoints set and deleted by console commands."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nncdbg.dap_server.breakpoints.breakpoint_requests import (
    DataRequest,
    FunctionRequest,
    LineRequest,
    binding_id,
    data_id,
)
from nncdbg.dap_server.breakpoints.client_breakpoints import BreakpointRequest, Terms, stops_of
from nncdbg.dap_server.protocol import BreakpointEventBody
from nncdbg.target.breakpoint_syntax import split_source

if TYPE_CHECKING:
    from nncdbg.dap_server.protocol import Breakpoint
    from nncdbg.dap_server.session import Session
    from nncdbg.target.stops import StopPoint


def report_breakpoint_changes(session: Session, before: set[int]) -> None:
    """Update the client's table after a console command, and report the changes.

    `before` are the numbers of the breakpoints before the command: newer breakpoints are added, deleted ones
    removed.  A breakpoint at a line of a file belongs to that file from now on: the client's next
    `setBreakpoints` keeps or deletes it.  Others stay until the console deletes them.
    """
    table = session.breakpoints
    for kept in table.take_deleted(session):
        session.client.send_event("breakpoint", BreakpointEventBody(reason="removed", breakpoint=kept.record))
    for point in stops_of(session).points():
        if point.number in before or point.temporary:
            continue
        record = _enter(session, point)
        session.client.send_event("breakpoint", BreakpointEventBody(reason="new", breakpoint=record))


def _enter(session: Session, point: StopPoint) -> Breakpoint:
    place = _line_of(session, point)
    if place is not None:
        path, line = place
        requested = LineRequest(path, 0, line, False, _terms(point))
        where = requested.requested_location(session) | ({"message": point.note} if point.note else {})
        group = ("line", os.path.realpath(path))
        return session.breakpoints.enter(session, group, "line", requested, point.number, where)
    kind, wanted = _request_of(point)
    where = {"message": point.text}
    return session.breakpoints.enter(session, "console", kind, wanted, point.number, where)


def _line_of(session: Session, point: StopPoint) -> tuple[str, int] | None:
    """Return the file and the line of a breakpoint at a line of the program's text, or of a script."""
    if point.kind == "source" and not point.lines:
        return split_source(point.place)
    path = session.program.sources.file
    return (str(path), point.lines[0]) if point.kind == "line" and path is not None else None


def _terms(point: StopPoint) -> Terms:
    return Terms(point.when, point.hits, point.log)


def _request_of(point: StopPoint) -> tuple[str, BreakpointRequest]:
    """Return the kind and the request of an equal breakpoint of a client."""
    if point.kind == "binding" and point.function is not None:
        return "data", DataRequest(binding_id(point.place, point.function), None, _terms(point))
    if point.kind in ("data", "parameter"):
        return "data", DataRequest(data_id(point.place), None, _terms(point))
    return "function", FunctionRequest(point.place, _terms(point))
