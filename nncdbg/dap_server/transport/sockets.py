"""The server over TCP or a Unix socket: one client after the other, until a signal ends it."""

from __future__ import annotations

import sys
from queue import SimpleQueue

from nncdbg.dap_server import handlers  # noqa: F401  enters the handlers into the table
from nncdbg.dap_server.capture import Capture
from nncdbg.dap_server.ending import ending_on_signals
from nncdbg.dap_server.runner import Runner
from nncdbg.dap_server.session import Session
from nncdbg.dap_server.transport.addresses import Address
from nncdbg.dap_server.transport.connection import Connection
from nncdbg.dap_server.transport.serving import Listener


def serve_clients(address: Address, token: str | None) -> int:
    """Serve until SIGINT or SIGTERM; return the exit code.  Prints the address on standard error."""
    sessions: SimpleQueue[Session | None] = SimpleQueue()

    def make_session(connection: Connection) -> Session:
        return Session(connection, Runner())

    listener = Listener(address, make_session, token, sessions.put)
    session: Session | None = None

    def end(exit_code: int) -> None:
        if session is not None:
            session.interrupted(exit_code)
        listener.close()
        sessions.put(None)

    with ending_on_signals(end) as caught:
        print(f"nncdbg dap: listening on {listener}", file=sys.stderr, flush=True)
        if listener.access.file is not None:
            print(f"nncdbg dap: clients must show the token in {listener.access.file}", file=sys.stderr)
        # This thread moves the program of each session.
        while (session := sessions.get()) is not None:
            _move_program(session)
            # Free the session, with its tensors, before the next client connects.
            session = None
    return 128 + caught[0]


def _move_program(session: Session) -> None:
    """Move the program of a session until it is over; its output is sent to the client."""
    with Capture(session.client.print_output) as capture:
        session.flush_output = capture.flush
        session.runner.run()
