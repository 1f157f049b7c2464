"""The server over standard input and output, for the client that started this process."""

from __future__ import annotations

import os
import sys

from nncdbg.dap_server import handlers  # noqa: F401  enters the handlers into the table
from nncdbg.dap_server.connection import Connection
from nncdbg.dap_server.runner import Runner
from nncdbg.dap_server.session import Session


def serve_stdio() -> None:
    """One session; returns when it is over.

    What a kernel prints must not mix with messages, so standard output goes where errors go.
    """
    reader = os.fdopen(os.dup(0), "rb")
    writer = os.fdopen(os.dup(1), "wb")
    sys.stdout.flush()
    os.dup2(2, 1)
    runner = Runner()
    session = Session(Connection(reader, writer, lambda: None), runner)
    session.start()
    runner.run()
