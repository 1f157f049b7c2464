"""A file that survives a crash of the process, with the running kernel (see `crash_report_reader`)."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from struct import Struct

from nncdbg.process.crash_report_reader import SENDING, SENT, SIZE

_NUMBER = Struct("<Q")


class CrashBox:
    """A new box in a folder, at the path `file`; it is removed with this object, or at a normal exit.

    Raises ImportError on a system without file locks, OSError if the file cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        import fcntl  # Windows has none

        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, self.file = tempfile.mkstemp(".box", f"{os.getpid()}-", folder)
        os.ftruncate(descriptor, SIZE)
        # Held until the process ends: another process can lock the file only after that.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self.mapped = mmap.mmap(descriptor, SIZE)
        self.close: Callable[[], object] = weakref.finalize(self, _remove, self.file, descriptor, os.getpid())
        """Removes the file."""

    def sending(self, number: int) -> None:
        """Record that the sending of message `number` to a client begins."""
        self.mapped[SENDING] = 1
        _NUMBER.pack_into(self.mapped, SENT, number)

    def sent(self) -> None:
        """Record that the message was sent completely."""
        self.mapped[SENDING] = 0


def _remove(file: str, descriptor: int, owner: int) -> None:
    os.close(descriptor)
    # A forked process inherits this and must not remove the file.
    if os.getpid() == owner:
        Path(file).unlink(missing_ok=True)
