"""The user's source of a recorded step for clients: calls as frames of the stack, and moves by lines."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from nncdbg.dap_server import protocol
from nncdbg.dap_server.sources.addresses import reference_of
from nncdbg.dap_server.variables.places import CallPlace, place_of

if TYPE_CHECKING:
    from nncdbg.dap_server.debuggee import Verb
    from nncdbg.dap_server.session import Session
    from nncdbg.target.records import SourceFrame, Stop
    from nncdbg.target.source import SourceView


def line_move(
    session: Session, command: str, statement: str = "", granularity: str | None = None
) -> tuple[Verb, str] | None:
    """Return a move in the source and its command of the prompt; None in the view of the graph.

    `statement` is the command for the granularity `instruction`.
    """
    source = session.program.source
    if source is None:
        return None
    name = statement if granularity == "instruction" and statement else command
    return (lambda: _by_line(session, source, name)), name


def _by_line(session: Session, source: SourceView, command: str) -> Stop:
    """Move; a step back, and one into a call that leaves the program where it is, are steps too."""
    before = session.program.target.stop
    stop = source.move(command)
    if not source.arrived or (stop is not before and stop.breakpoints):
        return stop
    return replace(stop, reason="step", breakpoints=(), finding=None, error=None, detail="")


def call_frames(session: Session) -> list[protocol.StackFrame]:
    """Return the calls of the user's functions, innermost first; none in the view of the graph."""
    program = session.program
    if program.source is None:
        return []
    frame = program.target.frame(0)
    return [
        protocol.StackFrame(
            id=session.handles.number(CallPlace(place_of(frame), each.number)),
            name=each.function or f"{os.path.basename(each.file)}:{each.line}",
            source=program.sources.of_recorded(each.file),
            line=session.client.outgoing_line(each.line),
            column=session.client.outgoing_column(1),
            instruction_pointer_reference=None if each.number else reference_of(session, frame.place),
            can_restart=False,
            presentation_hint="normal",
        )
        for each in program.source.frames()
    ]


def call_at(session: Session, number: int) -> SourceFrame | None:
    """Return a call by its number from the innermost; None if it is gone."""
    source = session.program.source
    frames = source.frames() if source is not None else ()
    return frames[number] if number < len(frames) else None
