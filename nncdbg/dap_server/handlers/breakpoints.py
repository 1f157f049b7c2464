"""Line, function and instruction breakpoints."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from nncdbg.dap_server.breakpoints.breakpoint_requests import (
    FunctionRequest,
    InstructionRequest,
    LineRequest,
    columns,
    split_condition,
)
from nncdbg.dap_server.breakpoints.client_breakpoints import Terms
from nncdbg.dap_server.events import report_message
from nncdbg.dap_server.protocol.requests import (
    BreakpointLocationsBody,
    SetBreakpointsBody,
    SetFunctionBreakpointsBody,
    SetInstructionBreakpointsBody,
)
from nncdbg.dap_server.protocol.types import Breakpoint, BreakpointLocation, SourceBreakpoint
from nncdbg.dap_server.registry import CONFIGURABLE, LIVE, each_program, request
from nncdbg.dap_server.sources.shown import path_in
from nncdbg.engine.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nncdbg.dap_server.protocol.requests import (
        BreakpointLocationsArguments,
        SetBreakpointsArguments,
        SetFunctionBreakpointsArguments,
        SetInstructionBreakpointsArguments,
    )
    from nncdbg.dap_server.session import Session

MAX_REFERENCE = (1 << 31) - 1
"""The largest source reference that the protocol can express."""


@each_program
def bind(session: Session) -> None:
    """Set the client's breakpoints on a new program, and send its logpoint messages to the client."""
    session.program.debugger.control.said = lambda message: report_message(session, message)
    session.breakpoints.bind(session)
    session.exception_filters.bind(session.program.debugger, session.client)


@request(
    "setBreakpoints",
    when=CONFIGURABLE,
    capability={
        "supportsConditionalBreakpoints": True,
        "supportsHitConditionalBreakpoints": True,
        "supportsLogPoints": True,
    },
)
def set_breakpoints(session: Session, arguments: SetBreakpointsArguments) -> SetBreakpointsBody:
    source = arguments.source
    path = path_in(source.path) if source.path else None
    wanted: Sequence[SourceBreakpoint] = arguments.breakpoints or [
        SourceBreakpoint(line=line) for line in arguments.lines or ()
    ]
    reference = source.source_reference or 0
    if not 0 <= reference <= MAX_REFERENCE:
        raise UsageError(
            f"there is no source with reference {reference}",
            hint=f"use a reference from 1 to {MAX_REFERENCE}",
        )
    requests = [
        LineRequest(
            None if reference else path,
            reference,
            session.client.incoming_line(each.line),
            each.column is not None,
            Terms(each.condition or None, each.hit_condition or None, each.log_message or None),
        )
        for each in wanted
    ]
    group = ("line", reference or (os.path.realpath(path) if path else None))
    records = session.breakpoints.replace(session, "line", group, requests)
    if arguments.source_modified and path is not None:
        records = [_with_note(each, "the program keeps the text that was loaded") for each in records]
    return SetBreakpointsBody(breakpoints=records)


def _with_note(record: Breakpoint, note: str) -> Breakpoint:
    return replace(record, message=f"{record.message}; {note}" if record.message else note)


def _function_request(text: str, condition: str | None, hits: str | None) -> FunctionRequest:
    name, when = split_condition(text, condition)
    return FunctionRequest(name, Terms(when, hits or None))


@request("setFunctionBreakpoints", when=CONFIGURABLE, capability="supportsFunctionBreakpoints")
def set_function_breakpoints(
    session: Session, arguments: SetFunctionBreakpointsArguments
) -> SetFunctionBreakpointsBody:
    requests = [
        _function_request(each.name, each.condition, each.hit_condition) for each in arguments.breakpoints
    ]
    records = session.breakpoints.replace(session, "function", "function", requests)
    return SetFunctionBreakpointsBody(breakpoints=records)


@request("setInstructionBreakpoints", when=CONFIGURABLE, capability="supportsInstructionBreakpoints")
def set_instruction_breakpoints(
    session: Session, arguments: SetInstructionBreakpointsArguments
) -> SetInstructionBreakpointsBody:
    requests = [
        InstructionRequest(
            each.instruction_reference,
            each.offset or 0,
            Terms(each.condition or None, each.hit_condition or None),
        )
        for each in arguments.breakpoints
    ]
    records = session.breakpoints.replace(session, "instruction", "instruction", requests)
    return SetInstructionBreakpointsBody(breakpoints=records)


@request("breakpointLocations", when=LIVE, capability="supportsBreakpointLocationsRequest")
def breakpoint_locations(
    session: Session, arguments: BreakpointLocationsArguments
) -> BreakpointLocationsBody:
    first = session.client.incoming_line(arguments.line)
    last = session.client.incoming_line(arguments.end_line) if arguments.end_line is not None else first
    listing = session.program.sources.listing(arguments.source)
    if listing is not None:
        lines = [line for line in listing.statement_lines if first <= line <= last]
        found = [
            BreakpointLocation(line=session.client.outgoing_line(line), **columns(session, listing, line))
            for line in lines
        ]
    else:
        origin = session.program.debugger.breakpoints.placement.origin(path_in(arguments.source.path or ""))
        lines = sorted(line for line in origin if first <= line <= last)
        found = [BreakpointLocation(line=session.client.outgoing_line(line)) for line in lines]
    return BreakpointLocationsBody(breakpoints=found)
