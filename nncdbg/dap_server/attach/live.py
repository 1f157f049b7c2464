"""A training that runs under the live debugger, shown to the attached client.

The client's function breakpoints, data breakpoints on parameters, line breakpoints in Python files, and
filters for NaN and Inf stop the script itself, not a recorded program.  Beside debugpy, which gets the line
breakpoints too, they are left to debugpy: otherwise each line would stop the script twice.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from nncdbg.dap_server.attach.calls import attachment, listen, wait_for_client
from nncdbg.dap_server.breakpoints.breakpoint_requests import DataRequest, FunctionRequest, LineRequest
from nncdbg.dap_server.failures import reason
from nncdbg.dap_server.protocol import Breakpoint
from nncdbg.dap_server.registry import State
from nncdbg.dap_server.transport.addresses import address_text, parse_address
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.target.breakpoint_syntax import parse_place
from nncdbg.torch.live.breakpoints import KINDS, LiveBreakpoint, live_breakpoint, parse_condition
from nncdbg.torch.live.stops import ScriptStops
from nncdbg.torch.live.target import ScriptTarget
from nncdbg.torch.live.training import LiveTraining

if TYPE_CHECKING:
    from nncdbg.dap_server.attach.process import Attachment
    from nncdbg.dap_server.breakpoints.client_breakpoints import ClientBreakpoint
    from nncdbg.dap_server.breakpoints.exception_filters import FilterRequest
    from nncdbg.dap_server.session import Session
    from nncdbg.expression import Expression
    from nncdbg.target.stops import StopPoint
    from nncdbg.target.target import Target
    from nncdbg.torch.live.debugger import LiveDebugger


class AttachedTraining:
    """Sets what the client requests on a training, and shows its stops to the client.

    What the script itself sets stays as it is.
    """

    def __init__(self, clients: Attachment, *, history: bool = False, on_demand: bool = False) -> None:
        self.training = LiveTraining(self._hold, self._say, history=history, on_demand=on_demand)
        self.stops = ConsoleStops(self)
        self.set_by_clients: dict[int, LiveBreakpoint] = {}
        """All breakpoints that clients have set, by number."""
        self._clients = clients
        self._stop: ScriptTarget | None = None
        """The stop at which the script is held."""
        self.caught: Mapping[str, Expression | None] = {}
        """The catches of the filters and of the console."""
        self._own: dict[str, Expression | None] = {}
        """The catches of the script itself."""
        self._filters: Sequence[FilterRequest] | None = None
        """The filters of the client that were applied last."""
        clients.script = self
        session = clients.session
        if session is not None:
            # What a client has requested before there was a training takes effect now.
            with session.queue.turn:
                session.queue.turn.wait_for(lambda: not session.queue.serving or session.queue.closing)
                session.breakpoints.bind(session)
                self.configured(session)

    def record(self, session: Session, kept: ClientBreakpoint) -> Breakpoint:
        if kept.number is not None:
            return kept.record
        where = kept.requested.requested_location(session)
        try:
            found = _live(kept, self.training.last_number + 1)
            self.training.check_name(found)
        except NncdbgError as error:
            return Breakpoint(id=kept.id, verified=False, message=reason(error), reason="failed", **where)
        kept.number = self.training.last_number = found.number
        self.set_by_clients[found.number] = found
        return Breakpoint(id=kept.id, verified=True, **where)

    def is_watchable(self, name: str) -> bool:
        return name.removesuffix(".grad") in self.training.mode.names.values()

    def commands(self) -> Mapping[int, Sequence[str]]:
        session = self._clients.session
        kept = {each.number for each in session.breakpoints.all()} if session is not None else set()
        return {number: found.commands for number, found in self.set_by_clients.items() if number in kept}

    def configured(self, session: Session | None) -> None:
        """Stop at what the client requests, and at the breakpoints and catches of the script."""
        wanted = {each.number for each in session.breakpoints.all()} if session is not None else set()
        stays = [
            each
            for each in self.training.mode.breakpoints
            if each.number not in self.set_by_clients
            or each.number in wanted
            # Only the console sets temporary ones, which are not in the client's table.
            or (each.temporary and session is not None)
        ]
        present = {each.number for each in stays}
        new = [each for each in self.set_by_clients.values() if each.number in wanted - present]
        self.training.set_breakpoints([*stays, *new])
        self._configure_catches(session)

    def _configure_catches(self, session: Session | None) -> None:
        mode, console = self.training.mode, self.stops
        self._own |= {kind: when for kind, when in mode.catches.items() if kind not in self.caught}
        requests = session.exception_filters.requests if session is not None else None
        if requests is not self._filters:
            console.uncaught.clear()
        if session is None:
            console.caught.clear()
        self._filters = requests
        wanted: dict[str, Expression | None] = {}
        for each in requests or ():
            if each.kind in KINDS and each.kind not in console.uncaught:
                try:
                    wanted[each.kind] = parse_condition(each.condition) if each.condition else None
                except NncdbgError as error:
                    self._say(f"the condition of {each.kind} is ignored: {error.message}")
                    wanted[each.kind] = None
        self.caught = wanted | console.caught
        mode.catches = {**self._own, **self.caught}
        mode.changed()

    def forget(self, kinds: Collection[str]) -> None:
        """Forget catches of the script that the console has removed."""
        for kind in kinds:
            self._own.pop(kind, None)

    def pause(self, why: str) -> None:
        self.training.pause(why or "paused by the editor")

    def _hold(self, debugger: LiveDebugger) -> None:
        self._stop = ScriptTarget(self.training, debugger)
        try:
            self._clients.hold(self._stop)
        finally:
            self._stop = None

    def _stop_of(self, target: Target) -> ScriptTarget | None:
        """Return the stop of the script, if it is what the client sees."""
        return self._stop if self._stop is not None and target == self._stop else None

    def progress(self, target: Target) -> str:
        stop = self._stop_of(target)
        return "" if stop is None else f"step {stop.step}"

    def record_step(self, session: Session) -> str:
        stop = self._stop_of(session.debuggee.target) if session.debuggee is not None else None
        if session.state is not State.STOPPED or stop is None:
            raise UsageError("a step is recorded from a stop of the script", hint="pause it first")
        session.program.move(session, stop.release, unasked=True)
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


class ConsoleStops(ScriptStops):
    """The breakpoints and catches of a script, as the console of an attached client changes them."""

    def __init__(self, attached: AttachedTraining) -> None:
        super().__init__(attached.training)
        self._attached = attached
        self.caught: dict[str, Expression | None] = {}
        """The catches that the console has set."""
        self.uncaught: set[str] = set()
        """The catches of filters that the console has removed."""

    def catch(self, kinds: Sequence[str], when: str | None) -> None:
        super().catch(kinds, when)
        self.caught |= {kind: self.training.mode.catches[kind] for kind in kinds}
        self._attached.caught = {**self._attached.caught, **self.caught}
        self.uncaught -= {*kinds}

    def uncatch(self, kinds: Sequence[str]) -> None:
        removed = {*(kinds or self.training.mode.catches)}
        super().uncatch(kinds)
        self.caught = {kind: when for kind, when in self.caught.items() if kind not in removed}
        self.uncaught |= removed
        self._attached.forget(removed)

    def _add(self, added: LiveBreakpoint) -> StopPoint:
        point = super()._add(added)
        self._attached.set_by_clients[added.number] = added
        return point


def _live(kept: ClientBreakpoint, number: int) -> LiveBreakpoint:
    """Return the breakpoint of the script for one of the client.  Raises NncdbgError."""
    requested = kept.requested
    when = None
    if isinstance(requested, FunctionRequest):
        kind, name = parse_place(requested.name)
        when = requested.terms.when
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
    return live_breakpoint(number, kind, name, when, requested.terms.hits, requested.terms.log)


def _debugpy_is_attached() -> bool:
    """Return whether an editor debugs the Python code of this process."""
    debugpy = sys.modules.get("debugpy")
    return debugpy is not None and debugpy.is_client_connected()
