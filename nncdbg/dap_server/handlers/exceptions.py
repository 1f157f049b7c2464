"""Exceptions of a program: filters to stop at, and details of the finding or failure at a stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nncdbg.dap_server.breakpoints.exception_filters import FILTERS, FilterRequest
from nncdbg.dap_server.protocol.requests import ExceptionInfoBody, SetExceptionBreakpointsBody
from nncdbg.dap_server.protocol.types import ExceptionDetails
from nncdbg.dap_server.registry import CONFIGURABLE, STOPPED, request
from nncdbg.dap_server.variables.origin_slice import Glancing
from nncdbg.engine.errors import MemoryFault, NncdbgError, UsageError
from nncdbg.engine.expression import spelled
from nncdbg.presentation.slices import causes_at_stop

if TYPE_CHECKING:
    from nncdbg.dap_server.protocol.requests import (
        ExceptionInfoArguments,
        SetExceptionBreakpointsArguments,
    )
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.execution.findings import Finding
    from nncdbg.engine.stopping.stops import Stop


@request(
    "setExceptionBreakpoints",
    when=CONFIGURABLE,
    capability={"exceptionBreakpointFilters": FILTERS, "supportsExceptionFilterOptions": True},
)
def set_exception_breakpoints(
    session: Session, arguments: SetExceptionBreakpointsArguments
) -> SetExceptionBreakpointsBody:
    requests = [FilterRequest(kind) for kind in arguments.filters]
    requests += [
        FilterRequest(each.filter_id, each.condition or None) for each in arguments.filter_options or ()
    ]
    debugger = session.debuggee.debugger if session.debuggee is not None else None
    records = session.exception_filters.replace(requests, debugger, session.breakpoints.new_id)
    return SetExceptionBreakpointsBody(breakpoints=records)


@request("exceptionInfo", when=STOPPED, capability="supportsExceptionInfoRequest", reads=True)
def exception_info(session: Session, arguments: ExceptionInfoArguments) -> ExceptionInfoBody:
    stop = session.program.debugger.stop
    if stop.finding is not None:
        return _finding_info(session, stop, stop.finding)
    if stop.error is not None:
        return _failure_info(session, stop, stop.error)
    raise UsageError(
        "the program has not stopped at an exception",
        hint="request `exceptionInfo` after a stop with the reason `exception`",
    )


def _finding_info(session: Session, stop: Stop, finding: Finding) -> ExceptionInfoBody:
    code, pc = finding.binding.code, finding.binding.pc
    outputs = code.nodes[pc].outputs
    name = outputs[finding.output].name if finding.output is not None else ""
    shown, check = Glancing(session), session.queue.check_cancelled
    failure = [] if stop.error is None else [str(stop.error)]
    causes = [line.plain for line in causes_at_stop(session.program.debugger, shown, check)]
    return ExceptionInfoBody(
        exception_id=finding.kind,
        description="\n".join([*failure, stop.finding_text, *causes]),
        break_mode="unhandled" if failure else "always",
        details=ExceptionDetails(
            message=stop.finding_text,
            type_name=finding.kind,
            full_type_name=f"nncdbg.{finding.kind}",
            evaluate_name=spelled(name) if name else None,
            stack_trace=_origin(session, stop, finding.output),
        ),
    )


def _failure_info(session: Session, stop: Stop, error: BaseException) -> ExceptionInfoBody:
    cause = error.__cause__ or error
    message = error.message if isinstance(error, NncdbgError) else str(error)
    inner = None
    if cause is not error:
        inner = [ExceptionDetails(message=str(cause), type_name=type(cause).__name__)]
    return ExceptionInfoBody(
        exception_id=error.kind if isinstance(error, MemoryFault) else type(cause).__name__,
        description=str(error),
        break_mode="unhandled",
        details=ExceptionDetails(
            message=message,
            type_name=type(cause).__name__,
            full_type_name=f"{type(cause).__module__}.{type(cause).__qualname__}",
            stack_trace=_origin(session, stop, None),
            inner_exception=inner,
        ),
    )


def _origin(session: Session, stop: Stop, output: int | None) -> str:
    from nncdbg.dap_server.variables.origin_slice import origin_lines

    return "\n".join(origin_lines(session, stop, output))
