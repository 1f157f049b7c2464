"""Data breakpoints: stop when a value is written, or makes a condition true."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nncdbg.dap_server.breakpoints.breakpoint_requests import DataRequest, data_id
from nncdbg.dap_server.breakpoints.client_breakpoints import Terms
from nncdbg.dap_server.protocol.requests import DataBreakpointInfoBody, SetDataBreakpointsBody
from nncdbg.dap_server.registry import CONFIGURABLE, LIVE, request
from nncdbg.dap_server.variables.places import child_place, values_from
from nncdbg.engine.compilation.search import candidates
from nncdbg.engine.errors import NncdbgError
from nncdbg.engine.expression import nodes, parse, spelled

if TYPE_CHECKING:
    from nncdbg.dap_server.attach.process import RunningScript
    from nncdbg.dap_server.protocol.requests import DataBreakpointInfoArguments, SetDataBreakpointsArguments
    from nncdbg.dap_server.session import Session


@request("dataBreakpointInfo", when=LIVE, values=True, capability="supportsDataBreakpoints")
def data_breakpoint_info(session: Session, arguments: DataBreakpointInfoArguments) -> DataBreakpointInfoBody:
    if arguments.as_address or arguments.bytes is not None:
        return _refused("a value has no fixed address; watch it by name")
    if arguments.variables_reference:
        place = child_place(session, arguments.variables_reference, arguments.name)
        if place is None or place.kind not in ("value", "previous"):
            return _refused(f"{arguments.name} is not the result of a statement")
        return _watched(session, place.text)
    named = arguments.name.removeprefix("%")
    if (script := _script(session)) is not None and script.is_watchable(named):
        # A stop has only the values so far.
        return _watched(session, named)
    try:
        scope = values_from(session, arguments.frame_id)
        expression = parse(arguments.name, scope.has, scope.names)
    except NncdbgError as error:
        return _refused(error.message)
    if len(expression.names) != 1:
        count = len(expression.names) or "no"
        return _refused(f"{arguments.name} names {count} values; a data breakpoint watches one")
    name = next(iter(expression.names))
    return _watched(session, name, arguments.name if _is_condition(expression.root) else None)


def _is_condition(root: nodes.ExpressionNode) -> bool:
    """Return whether an expression is a condition; it need not be computed yet."""
    match root:
        case nodes.Compare() | nodes.Boolean() | nodes.Unary(symbol="not"):
            return True
        case nodes.CallExpression(function=name):
            return name in ("any", "all")
    return False


def _watched(session: Session, name: str, when: str | None = None) -> DataBreakpointInfoBody:
    script = _script(session)
    if script is not None and not script.is_watchable(name):
        return _refused(f"{spelled(name)} is not a parameter, buffer or gradient of the running models")
    if script is None and name not in candidates(session.program.debugger.program, "value"):
        return _refused(
            f"{spelled(name)} is a constant or belongs to a micro program: no statement writes it"
        )
    value = spelled(name)
    return DataBreakpointInfoBody(
        data_id=data_id(value, when),
        description=f"{value} is written, and {when}" if when else f"{value} is written",
        access_types=["write"],
        can_persist=True,
    )


def _script(session: Session) -> RunningScript | None:
    return session.attachment.script if session.attachment is not None else None


def _refused(why: str) -> DataBreakpointInfoBody:
    return DataBreakpointInfoBody(data_id=None, description=why)


@request("setDataBreakpoints", when=CONFIGURABLE)
def set_data_breakpoints(session: Session, arguments: SetDataBreakpointsArguments) -> SetDataBreakpointsBody:
    requests = [
        DataRequest(each.data_id, each.access_type, Terms(each.condition or None, each.hit_condition or None))
        for each in arguments.breakpoints
    ]
    return SetDataBreakpointsBody(breakpoints=session.breakpoints.replace(session, "data", "data", requests))
