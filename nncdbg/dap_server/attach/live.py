"""A training that runs under the live debugger, shown to the attached client.

The client's function breakpoints, data breakpoints on parameters, line breakpoints in Python files, and
filters for NaN and Inf stop the script itself, not a recorded program.  Beside debugpy, which gets the line
breakpoints too, they are left to debugpy: otherwise each line would stop the script twice.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nncdbg.dap_server.attach.calls import attachment, listen, wait_for_client
from nncdbg.dap_server.breakpoints.breakpoint_requests import DataRequest, FunctionRequest, LineRequest
from nncdbg.dap_server.failures import reason
from nncdbg.dap_server.protocol.types import Breakpoint
from nncdbg.dap_server.registry import State
from nncdbg.dap_server.transport.addresses import address_text, parse_address
from nncdbg.engine.errors import NncdbgError, UsageError
from nncdbg.presentation.breakpoint_syntax import split_place
from nncdbg.torch.live.breakpoints import KINDS, LiveBreakpoint, live_breakpoint, parse_condition
from nncdbg.torch.live.debugger import LiveDebugger
from nncdbg.torch.live.training import LiveTraining

if TYPE_CHECKING:
    from nncdbg.dap_server.attach.process import Attachment
    from nncdbg.dap_server.breakpoints.client_breakpoints import ClientBreakpoint
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.debugger import Debugger


class AttachedTraining:
    """Sets what the client requests on a training, and shows its stops to the client."""

    def __init__(self, clients: Attachment, *, history: bool = False, on_demand: bool = False) -> None:
        self.training = LiveTraining(clients.hold, self._say, history=history, on_demand=on_demand)
        self._clients = clients
        self._set: dict[int, LiveBreakpoint] = {}
        """The client's breakpoints by the ids of the client."""
        clients.script = self

    def record(self, session: Session, kept: ClientBreakpoint) -> Breakpoint:
        where = kept.requested.requested_location(session)
        try:
            if kept.id not in self._set:
                found = _live(kept)
                self.training.check_name(found)
                self._set[kept.id] = found
        except NncdbgError as error:
            return Breakpoint(id=kept.id, verified=False, message=reason(error), reason="failed", **where)
        return Breakpoint(id=kept.id, verified=True, **where)

    def is_watchable(self, name: str) -> bool:
        return name.removesuffix(".grad") in self.training.mode.names.values()

    def commands(self) -> Mapping[int, str]:
        session = self._clients.session
        kept = {each.id for each in session.breakpoints.all()} if session is not None else set()
        return {number: found.command for number, found in self._set.items() if number in kept}

    def configured(self, session: Session | None) -> None:
        """Stop at exactly the breakpoints and filters of the client."""
        mode = self.training.mode
        kept = session.breakpoints.all() if session is not None else []
        self._set = {each.id: self._set[each.id] for each in kept if each.id in self._set}
        mode.breakpoints = [*self._set.values()]
        requests = (session.exception_filters.requests if session is not None else None) or ()
        wanted = {}
        for each in requests:
            if each.kind in KINDS:
                try:
                    wanted[each.kind] = parse_condition(each.condition) if each.condition else None
                except NncdbgError as error:
                    self._say(f"the condition of {each.kind} is ignored: {error.message}")
                    wanted[each.kind] = None
        mode.catches = wanted
        mode.changed()

    def pause(self, why: str) -> None:
        self.training.pause(why or "paused by the editor")

    def progress(self, debugger: Debugger) -> str:
        return f"step {debugger.live.operator.step}" if isinstance(debugger, LiveDebugger) else ""

    def record_step(self, session: Session) -> str:
        debugger = session.debuggee.debugger if session.debuggee is not None else None
        if session.state is not State.STOPPED or not isinstance(debugger, LiveDebugger):
            raise UsageError("a step is recorded from a stop of the script", hint="pause it first")
        session.program.move(session, debugger.release, unasked=True)
        return self.training.record_step()

    def _say(self, text: str) -> None:
        session = self._clients.session
        if session is not None:
            session.client.say(text)


def listening_training(address: str, *, history: bool) -> LiveTraining:
    """Listen on ``HOST:PORT``, wait until a client is attached, and return a training with stops there.

    Raises UsageError for an address that is invalid or in use.
    """
    place = listen(parse_address(address))
    made = attachment()
    assert made is not None
    training = AttachedTraining(made, history=history).training
    print(f"nncdbg: waiting for an editor at {address_text(place)}", file=sys.stderr, flush=True)
    wait_for_client()
    return training


def _live(kept: ClientBreakpoint) -> LiveBreakpoint:
    """Return the breakpoint of the script for one of the client.  Raises NncdbgError."""
    requested = kept.requested
    when = None
    if isinstance(requested, FunctionRequest):
        kind, name, rest = split_place(requested.name)
        when = requested.terms.when
        if rest:
            raise UsageError(f'unexpected "{rest}" after the place', hint="set a condition instead")
    elif isinstance(requested, DataRequest):
        kind = "value"
        name, when = requested.watched()
    elif isinstance(requested, LineRequest) and requested.path and requested.path.endswith(".py"):
        if _debugpy_is_attached():
            raise UsageError(
                "debugpy stops at this line",
                hint="for the tensors, set a function breakpoint such as aten.addmm, or press Pause in the "
                "session of nncdbg: it stops at the next operator",
            )
        kind, name, when = "source", f"{requested.path}:{requested.line}", requested.terms.when
    else:
        raise UsageError(
            "the text of a stop changes with each stop of a running script",
            hint="set a function breakpoint, such as aten.addmm or @encoder.out, or one in a Python file",
        )
    return live_breakpoint(kept.id, kind, name, when, requested.terms.hits, requested.terms.log)


def _debugpy_is_attached() -> bool:
    """Return whether an editor debugs the Python code of this process."""
    debugpy = sys.modules.get("debugpy")
    return debugpy is not None and debugpy.is_client_connected()
