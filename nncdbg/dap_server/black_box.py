"""Watchdog process that reports a crash of the server in a kernel to the client.

A process killed by a kernel cannot send anything.  A small second process therefore holds the client's end
of the connection, and the end of a pipe that closes with the server.  A server that ends normally ends the
watchdog first; if the pipe closes, the watchdog reads the black box and names the op.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nncdbg.dap_server.registry import each_program

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session

_ROOT = Path(__file__).parents[2]

_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from nncdbg.dap_server.last_message import main; main()"
)


class Watchdog:
    """Watches this process.  `box` is the file of its black box, `descriptor` the client's connection."""

    def __init__(self, box: str, descriptor: int) -> None:
        reading, self._writing = os.pipe()
        try:
            self._process = subprocess.Popen(
                # Isolated and without the site's packages: it starts fast, and takes little memory.
                [sys.executable, "-I", "-S", "-c", _START, str(_ROOT), box],
                stdin=reading,
                stdout=descriptor,
                stderr=subprocess.DEVNULL,
                cwd=os.path.sep,
            )
        finally:
            os.close(reading)

    def end(self) -> None:
        """End the watchdog: the process ends normally, or the client is disconnected."""
        self._process.kill()
        self._process.wait()
        os.close(self._writing)


@each_program
def start_watchdog(session: Session) -> None:
    """Watch the session's program if one of its kernels may crash."""
    end_watchdog(session)
    box = session.program.target.setup.crash_box
    session.client.connection.black_box = box
    if box is None or session.client.connection.descriptor is None:
        return
    session.watchdog = Watchdog(box.file, session.client.connection.descriptor)
    if end_watchdog not in session.at_end:
        session.at_end.append(end_watchdog)


def end_watchdog(session: Session) -> None:
    """End the watch over this program."""
    watchdog, session.watchdog = session.watchdog, None
    if watchdog is not None:
        watchdog.end()
