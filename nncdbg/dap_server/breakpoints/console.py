"""Breakpoints that commands of the console have set and deleted, as the client is told of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nncdbg.dap_server.breakpoints.asked import Terms, Wish
from nncdbg.dap_server.breakpoints.wishes import DataWish, FunctionWish, LineWish, data_id
from nncdbg.dap_server.protocol.events import BreakpointEventBody
from nncdbg.engine.expression import spelled
from nncdbg.engine.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.dap_server.protocol.types import Breakpoint
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.stopping import breakpoints as engine


def tell_breakpoints(session: Session, before: set[int]) -> None:
    """Enter what is new since the engine had these numbers into the client's table, take out what is gone,
    and say so.

    One at a line of the program's text belongs to that file from now on: the client's next
    `setBreakpoints` says whether it stays.  Others stay until the console deletes them.
    """
    table = session.breakpoints
    for kept in table.take_deleted(session):
        session.client.send_event("breakpoint", BreakpointEventBody(reason="removed", breakpoint=kept.told))
    for found in session.program.debugger.breakpoints:
        if found.number in before or found.temporary:
            continue
        path = session.program.sources.file
        if found.kind == "line" and path is not None:
            told = _enter_line(session, found, str(path))
        else:
            kind, wish = _wish(found)
            told = table.enter(session, "console", kind, wish, found, {"message": str(found)})
        session.client.send_event("breakpoint", BreakpointEventBody(reason="new", breakpoint=told))


def _terms(found: engine.Breakpoint) -> Terms:
    when = found.condition.text if found.condition is not None else None
    return Terms(when, found.hits, found.log)


def _enter_line(session: Session, found: engine.Breakpoint, path: str) -> Breakpoint:
    wish = LineWish(path, 0, found.lines[0], False, _terms(found))
    where = wish.asked(session) | ({"message": found.note} if found.note else {})
    return session.breakpoints.enter(session, ("line", os.path.realpath(path)), "line", wish, found, where)


def _wish(found: engine.Breakpoint) -> tuple[str, Wish]:
    """(kind, wish) that would have made the engine's breakpoint."""
    if found.kind == "data":
        return "data", DataWish(data_id(spelled(found.target)), None, _terms(found))
    names = {"graph": f"@{name_text(found.target)}", "value": spelled(found.target)}
    return "function", FunctionWish(names.get(found.kind, found.target), _terms(found))
