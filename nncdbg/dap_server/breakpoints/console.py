"""Reports to the client of breakpoints set and deleted by console commands."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nncdbg.dap_server.breakpoints.breakpoint_requests import (
    DataRequest,
    FunctionRequest,
    LineRequest,
    data_id,
)
from nncdbg.dap_server.breakpoints.client_breakpoints import BreakpointRequest, Terms
from nncdbg.dap_server.protocol.events import BreakpointEventBody
from nncdbg.engine.expression import spelled
from nncdbg.engine.stopping.place_names import place_text

if TYPE_CHECKING:
    from nncdbg.dap_server.protocol.types import Breakpoint
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.stopping import breakpoints as engine


def report_breakpoint_changes(session: Session, before: set[int]) -> None:
    """Update the client's table after a console command, and report the changes.

    `before` are the engine's breakpoint numbers before the command: newer breakpoints are added, deleted ones
    removed.  A breakpoint at a line of the program's text belongs to that file from now on: the client's next
    `setBreakpoints` keeps or deletes it.  Others stay until the console deletes them.
    """
    table = session.breakpoints
    for kept in table.take_deleted(session):
        session.client.send_event("breakpoint", BreakpointEventBody(reason="removed", breakpoint=kept.record))
    for found in session.program.debugger.breakpoints:
        if found.number in before or found.temporary:
            continue
        path = session.program.sources.file
        if found.kind == "line" and path is not None:
            record = _enter_line(session, found, str(path))
        else:
            kind, requested = _request_of(found)
            record = table.enter(session, "console", kind, requested, found, {"message": str(found)})
        session.client.send_event("breakpoint", BreakpointEventBody(reason="new", breakpoint=record))


def _terms(found: engine.Breakpoint) -> Terms:
    when = found.condition.text if found.condition is not None else None
    return Terms(when, found.hits, found.log)


def _enter_line(session: Session, found: engine.Breakpoint, path: str) -> Breakpoint:
    requested = LineRequest(path, 0, found.lines[0], False, _terms(found))
    where = requested.requested_location(session) | ({"message": found.note} if found.note else {})
    return session.breakpoints.enter(
        session, ("line", os.path.realpath(path)), "line", requested, found, where
    )


def _request_of(found: engine.Breakpoint) -> tuple[str, BreakpointRequest]:
    """(kind, request) equivalent to the engine's breakpoint."""
    if found.kind == "data":
        return "data", DataRequest(data_id(spelled(found.target)), None, _terms(found))
    return "function", FunctionRequest(place_text(found.kind, found.target), _terms(found))
