"""Breakpoints on lines, functions, instructions, data and exceptions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from textwrap import wrap
from typing import TYPE_CHECKING

from msgspec.structs import replace

from nncdbg.dap_server import protocol
from nncdbg.dap_server.breakpoints.breakpoint_requests import (
    DataRequest,
    FunctionRequest,
    InstructionRequest,
    LineRequest,
    binding_id,
    columns,
    data_id,
    split_condition,
)
from nncdbg.dap_server.breakpoints.client_breakpoints import Terms
from nncdbg.dap_server.breakpoints.exception_filters import FILTERS, FilterRequest
from nncdbg.dap_server.events import report_message
from nncdbg.dap_server.registry import CONFIGURABLE, LIVE, STOPPED, each_program, request
from nncdbg.dap_server.sources.shown import path_in
from nncdbg.dap_server.variables.places import call_of, child_place, values_from
from nncdbg.errors import MemoryFault, NncdbgError, UsageError
from nncdbg.expression import nodes, parse, spelled
from nncdbg.ir.search import candidates
from nncdbg.presentation.slices import causes_at_stop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nncdbg.dap_server.attach.process import RunningScript
    from nncdbg.dap_server.session import Session
    from nncdbg.target.records import Finding, Stop

MAX_REFERENCE = (1 << 31) - 1
"""The largest source reference that the protocol can express."""


@each_program
def bind(session: Session) -> None:
    """Set the client's breakpoints on a new program, and send its logpoint messages to the client."""
    session.program.listen(lambda message: report_message(session, message))
    session.breakpoints.bind(session)
    session.exception_filters.bind(session.program.target, session.client)


@request(
    "setBreakpoints",
    when=CONFIGURABLE,
    capability={
        "supportsConditionalBreakpoints": True,
        "supportsHitConditionalBreakpoints": True,
        "supportsLogPoints": True,
    },
)
def set_breakpoints(
    session: Session, arguments: protocol.SetBreakpointsArguments
) -> protocol.SetBreakpointsBody:
    source = arguments.source
    path = path_in(source.path) if source.path else None
    wanted: Sequence[protocol.SourceBreakpoint] = arguments.breakpoints or [
        protocol.SourceBreakpoint(line=line) for line in arguments.lines or ()
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
        note = "the program keeps the text that was loaded"
        records = [
            replace(each, message=f"{each.message}; {note}" if each.message else note) for each in records
        ]
    return protocol.SetBreakpointsBody(breakpoints=records)


@request("setFunctionBreakpoints", when=CONFIGURABLE, capability="supportsFunctionBreakpoints")
def set_function_breakpoints(
    session: Session, arguments: protocol.SetFunctionBreakpointsArguments
) -> protocol.SetFunctionBreakpointsBody:
    requests = []
    for each in arguments.breakpoints:
        name, when = split_condition(each.name, each.condition)
        requests.append(FunctionRequest(name, Terms(when, each.hit_condition or None)))
    records = session.breakpoints.replace(session, "function", "function", requests)
    return protocol.SetFunctionBreakpointsBody(breakpoints=records)


@request("setInstructionBreakpoints", when=CONFIGURABLE, capability="supportsInstructionBreakpoints")
def set_instruction_breakpoints(
    session: Session, arguments: protocol.SetInstructionBreakpointsArguments
) -> protocol.SetInstructionBreakpointsBody:
    requests = [
        InstructionRequest(
            each.instruction_reference,
            each.offset or 0,
            Terms(each.condition or None, each.hit_condition or None),
        )
        for each in arguments.breakpoints
    ]
    records = session.breakpoints.replace(session, "instruction", "instruction", requests)
    return protocol.SetInstructionBreakpointsBody(breakpoints=records)


@request("breakpointLocations", when=LIVE, capability="supportsBreakpointLocationsRequest")
def breakpoint_locations(
    session: Session, arguments: protocol.BreakpointLocationsArguments
) -> protocol.BreakpointLocationsBody:
    first = session.client.incoming_line(arguments.line)
    last = session.client.incoming_line(arguments.end_line) if arguments.end_line is not None else first
    listing = session.program.sources.listing(arguments.source)
    if listing is not None:
        lines = [line for line in listing.statement_lines if first <= line <= last]
        found = [
            protocol.BreakpointLocation(
                line=session.client.outgoing_line(line), **columns(session, listing, line)
            )
            for line in lines
        ]
    else:
        made = session.program.target.stops.lines_of(path_in(arguments.source.path or ""))
        lines = sorted(line for line in made if first <= line <= last)
        found = [protocol.BreakpointLocation(line=session.client.outgoing_line(line)) for line in lines]
    return protocol.BreakpointLocationsBody(breakpoints=found)


@request("dataBreakpointInfo", when=LIVE, values=True, capability="supportsDataBreakpoints")
def data_breakpoint_info(
    session: Session, arguments: protocol.DataBreakpointInfoArguments
) -> protocol.DataBreakpointInfoBody:
    if arguments.as_address or arguments.bytes is not None:
        return _refused("a value has no fixed address; watch it by name")
    if arguments.variables_reference:
        place = child_place(session, arguments.variables_reference, arguments.name)
        if (called := call_of(session, arguments.variables_reference)) is not None:
            return _bound(session, called, arguments.name)
        if place is None or place.kind not in ("value", "previous"):
            return _refused(f"{arguments.name} is not the result of a statement")
        return _watched(session, place.text)
    named = arguments.name.removeprefix("%")
    if (script := _script(session)) is not None and script.is_watchable(named):
        # A stop has only the values so far.
        return _watched(session, named)
    try:
        scope = values_from(session, arguments.frame_id)
        if (source := session.program.source) is not None and arguments.name in scope.aliases():
            return _bound(session, source.selected, arguments.name)
        expression = parse(arguments.name, scope.has, scope.names)
    except NncdbgError as error:
        return _refused(error.message)
    if len(expression.names) != 1:
        count = len(expression.names) or "no"
        return _refused(f"{arguments.name} names {count} values; a data breakpoint watches one")
    name = next(iter(expression.names))
    return _watched(session, name, arguments.name if _is_condition(expression.root) else None)


def _bound(session: Session, number: int, name: str) -> protocol.DataBreakpointInfoBody:
    """Return how to stop where a line binds a name of a call of the stack."""
    source = session.program.source
    function = source.function_at(number) if source is not None else None
    if function is None or name not in session.program.target.stops.bound_in(function):
        return _refused(f"no line binds {name}")
    words = f"a line of {function[1]} binds {name}"
    return protocol.DataBreakpointInfoBody(
        data_id=binding_id(name, function), description=words, access_types=["write"], can_persist=True
    )


def _is_condition(root: nodes.ExpressionNode) -> bool:
    """Return whether an expression is a condition; it need not be computed yet."""
    match root:
        case nodes.Compare() | nodes.Boolean() | nodes.Unary(symbol="not"):
            return True
        case nodes.CallExpression(function=name):
            return name in ("any", "all")
    return False


def _watched(session: Session, name: str, when: str | None = None) -> protocol.DataBreakpointInfoBody:
    script = _script(session)
    if script is not None and not script.is_watchable(name):
        return _refused(f"{spelled(name)} is not a parameter, buffer or gradient of the running models")
    if script is None and name not in candidates(session.program.target.program, "value"):
        return _refused(
            f"{spelled(name)} is a constant or belongs to a micro program: no statement writes it"
        )
    value = spelled(name)
    return protocol.DataBreakpointInfoBody(
        data_id=data_id(value, when),
        description=f"{value} is written, and {when}" if when else f"{value} is written",
        access_types=["write"],
        can_persist=True,
    )


def _script(session: Session) -> RunningScript | None:
    return session.attachment.script if session.attachment is not None else None


def _refused(why: str) -> protocol.DataBreakpointInfoBody:
    return protocol.DataBreakpointInfoBody(data_id=None, description=why)


@request("setDataBreakpoints", when=CONFIGURABLE)
def set_data_breakpoints(
    session: Session, arguments: protocol.SetDataBreakpointsArguments
) -> protocol.SetDataBreakpointsBody:
    requests = [
        DataRequest(each.data_id, each.access_type, Terms(each.condition or None, each.hit_condition or None))
        for each in arguments.breakpoints
    ]
    return protocol.SetDataBreakpointsBody(
        breakpoints=session.breakpoints.replace(session, "data", "data", requests)
    )


@request(
    "setExceptionBreakpoints",
    when=CONFIGURABLE,
    capability={"exceptionBreakpointFilters": FILTERS, "supportsExceptionFilterOptions": True},
)
def set_exception_breakpoints(
    session: Session, arguments: protocol.SetExceptionBreakpointsArguments
) -> protocol.SetExceptionBreakpointsBody:
    requests = [FilterRequest(kind) for kind in arguments.filters]
    requests += [
        FilterRequest(each.filter_id, each.condition or None) for each in arguments.filter_options or ()
    ]
    target = session.debuggee.target if session.debuggee is not None else None
    records = session.exception_filters.replace(requests, target, session.breakpoints.new_id)
    return protocol.SetExceptionBreakpointsBody(breakpoints=records)


@request("exceptionInfo", when=STOPPED, capability="supportsExceptionInfoRequest", reads=True)
def exception_info(
    session: Session, arguments: protocol.ExceptionInfoArguments
) -> protocol.ExceptionInfoBody:
    stop = session.program.target.stop
    if stop.finding is not None:
        return _finding_info(session, stop, stop.finding)
    if stop.error is not None:
        return _failure_info(session, stop, stop.error)
    raise UsageError(
        "the program has not stopped at an exception",
        hint="request `exceptionInfo` after a stop with the reason `exception`",
    )


def _finding_info(session: Session, stop: Stop, finding: Finding) -> protocol.ExceptionInfoBody:
    name = ""
    if finding.output is not None and finding.place.node is not None:
        name = finding.place.node.outputs[finding.output].name
    check = session.queue.check_cancelled
    failure = [] if stop.error is None else [str(stop.error)]
    causes = [line.plain for line in causes_at_stop(session.program.target, check)]
    # The cause first; of a failure, the error.
    first = [line.removeprefix("  ") for line in causes]
    text = [*failure, stop.finding_text, *causes] if failure else [*first, stop.finding_text]
    return protocol.ExceptionInfoBody(
        exception_id=finding.kind,
        description="\n".join(_hanging(text)),
        break_mode="unhandled" if failure else "always",
        details=protocol.ExceptionDetails(
            message=stop.finding_text,
            type_name=finding.kind,
            full_type_name=f"nncdbg.{finding.kind}",
            evaluate_name=spelled(name) if name else None,
            stack_trace=_origin(session, stop, finding.output),
        ),
    )


def _hanging(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines that fit into the box of a client; a long one continues with an indentation."""
    for line in "\n".join(lines).splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        yield from wrap(line, BOX_WIDTH, subsequent_indent=f"{indent}    ", break_on_hyphens=False) or [""]


BOX_WIDTH = 84
"""Characters of a line in the box of an exception, in an editor beside a side bar."""


def _failure_info(session: Session, stop: Stop, error: BaseException) -> protocol.ExceptionInfoBody:
    cause = error.__cause__ or error
    message = error.message if isinstance(error, NncdbgError) else str(error)
    inner = None
    if cause is not error:
        inner = [protocol.ExceptionDetails(message=str(cause), type_name=type(cause).__name__)]
    return protocol.ExceptionInfoBody(
        exception_id=error.kind if isinstance(error, MemoryFault) else type(cause).__name__,
        description=str(error),
        break_mode="unhandled",
        details=protocol.ExceptionDetails(
            message=message,
            type_name=type(cause).__name__,
            full_type_name=f"{type(cause).__module__}.{type(cause).__qualname__}",
            stack_trace=_origin(session, stop, None),
            inner_exception=inner,
        ),
    )


def _origin(session: Session, stop: Stop, output: int | None) -> str:
    from nncdbg.dap_server.handlers.explaining import origin_lines

    return "\n".join(origin_lines(session, stop, output))
