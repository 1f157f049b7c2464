"""Registry of this user's listening processes: one file each, read by the attach picker of an editor."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

from nncdbg.dap_server.transport.addresses import Address
from nncdbg.process.files import state_folder


def entries_folder() -> Path:
    """Return the folder of the entries: `PID.json`, each readable by the user only."""
    return state_folder() / "listening"


def enter(address: Address) -> Path:
    """Write the entry of this process, and return its path.  Raises OSError."""
    folder = entries_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_stale(folder)
    place = (
        {"host": address[0], "port": address[1]} if isinstance(address, tuple) else {"socket": str(address)}
    )
    program = os.path.abspath(sys.argv[0]) if os.path.isfile(sys.argv[0]) else sys.executable
    entry = {"connect": place, "program": program}
    path = folder / f"{os.getpid()}.json"
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(entry, file)
    return path


def _remove_stale(folder: Path) -> None:
    """Remove the entries of processes that ended without removing them."""
    for path in folder.glob("*.json"):
        if path.stem.isdecimal() and not _is_running(int(path.stem)):
            path.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process has this PID now
        return False
    return True


def remove(path: Path) -> None:
    """Remove an entry."""
    with contextlib.suppress(OSError):  # the folder may not exist any more
        path.unlink()
