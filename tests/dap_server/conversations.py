"""Sessions in this process, which start in milliseconds."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from nncdbg.dap_server import handlers  # noqa: F401  enters the handlers into the table
from nncdbg.dap_server.runner import Runner
from nncdbg.dap_server.session import Session
from nncdbg.dap_server.transport.connection import Connection
from tests.dap_server.client import Client, socket_client


@contextlib.contextmanager
def conversation() -> Iterator[Client]:
    """A client of a session in this process; the session and its threads end with it."""
    ours, theirs = socket.socketpair()
    stream = theirs.makefile("rb")

    def close(reading: bool) -> None:
        with contextlib.suppress(OSError):
            theirs.shutdown(socket.SHUT_RDWR if reading else socket.SHUT_WR)

    runner = Runner()
    session = Session(Connection(stream, theirs.sendall, close), runner)
    mover = threading.Thread(target=runner.run)
    mover.start()
    session.start()
    try:
        with socket_client(ours) as client:
            yield client
    finally:
        session.join()
        mover.join()
        stream.close()
        theirs.close()
