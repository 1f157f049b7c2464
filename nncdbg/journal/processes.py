"""Which process writes a run, and whether it still exists."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Writer:
    """A process: its host, the boot of that host, its number, and when it started ("" if not known).

    The start distinguishes a process from a later one with the same number.
    """

    host: str
    boot: str
    process: int
    started: str

    @property
    def gone(self) -> bool:
        """Whether the process has ended; False if it runs on another host, where this is not known."""
        if self.host != socket.gethostname():
            return False
        if self.boot != _boot():
            return True
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return self.started != _started(self.process)


def this_process() -> Writer:
    """Return the record of the current process."""
    number = os.getpid()
    return Writer(socket.gethostname(), _boot(), number, _started(number))


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _started(process: int) -> str:
    """Return the start of a process in clock ticks since the boot; "Z" for one that has ended."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    # The name of the program, in parentheses, may have spaces.
    fields = status[status.rindex(")") + 2 :].split()
    return "Z" if fields[0] == "Z" else fields[19]
