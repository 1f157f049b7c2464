"""How a session begins and ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nncdbg.dap_server.events import report_end, report_stop
from nncdbg.dap_server.launching import LaunchArguments, launch
from nncdbg.dap_server.registry import ALWAYS, LIVE, State, capabilities, request

if TYPE_CHECKING:
    from nncdbg.dap_server.protocol.requests import (
        ConfigurationDoneArguments,
        DisconnectArguments,
        InitializeRequestArguments,
        TerminateArguments,
    )
    from nncdbg.dap_server.session import Session


@request("initialize", when=frozenset({State.NEW}))
def initialize(session: Session, arguments: InitializeRequestArguments) -> dict[str, Any]:
    session.client = arguments
    session.state = State.INITIALIZED
    return capabilities()


@request("launch", when=frozenset({State.INITIALIZED}), arguments=LaunchArguments)
def launch_program(session: Session, arguments: LaunchArguments) -> None:
    session.launched = arguments
    session.debuggee = launch(arguments, session.runner)
    session.state = State.CONFIGURING
    for note in session.debuggee.debugger.notes:
        session.say(note)
    session.defer(lambda: session.send_event("initialized"))


@request(
    "configurationDone",
    when=frozenset({State.CONFIGURING}),
    capability="supportsConfigurationDoneRequest",
)
def configuration_done(session: Session, arguments: ConfigurationDoneArguments) -> None:
    debuggee = session.debuggee
    assert debuggee is not None
    assert session.launched is not None
    if session.launched.stop_on_entry:
        session.state = State.STOPPED
        session.defer(lambda: report_stop(session, debuggee.debugger.stop))
    else:
        debuggee.move(session, debuggee.debugger.run)


@request("terminate", when=LIVE, capability="supportsTerminateRequest", anytime=True)
def terminate(session: Session, arguments: TerminateArguments) -> None:
    session.defer(lambda: report_end(session, 0))


@request("disconnect", when=ALWAYS, capability="supportTerminateDebuggee", anytime=True)
def disconnect(session: Session, arguments: DisconnectArguments) -> None:
    session.defer(session.vanished)
