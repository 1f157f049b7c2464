"""A process that stands by while kernels run that may crash, and says the last words to the client.

A process that a kernel has killed can say nothing any more.  So a small second one holds the
client's end of the connection, and the end of a pipe that closes with ours.  Ours ends it first
where all ends well; so if the pipe closes, it reads the black box and names the op.
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
    """Watches over this process from now on.  `box` is the file of its black box, `descriptor` the client."""

    def __init__(self, box: str, descriptor: int) -> None:
        reading, self._writing = os.pipe()
        try:
            self._process = subprocess.Popen(
                # Isolated and without the site's packages: it stands by soon, and takes little memory.
                [sys.executable, "-I", "-S", "-c", _START, str(_ROOT), box],
                stdin=reading,
                stdout=descriptor,
                stderr=subprocess.DEVNULL,
                cwd=os.path.sep,
            )
        finally:
            os.close(reading)

    def end(self) -> None:
        """All has ended well, or the client is no longer ours."""
        self._process.kill()
        self._process.wait()
        os.close(self._writing)


@each_program
def stand_by(session: Session) -> None:
    """Watch over the session's program if a kernel of it may crash."""
    end_watch(session)
    box = session.program.debugger.black_box
    session.client.connection.black_box = box
    if box is None or box.file is None or session.client.connection.descriptor is None:
        return
    session.watchdog = Watchdog(box.file, session.client.connection.descriptor)
    if end_watch not in session.at_end:
        session.at_end.append(end_watch)


def end_watch(session: Session) -> None:
    """Watch over this program no more."""
    watchdog, session.watchdog = session.watchdog, None
    if watchdog is not None:
        watchdog.end()
