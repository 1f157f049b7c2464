"""Recorded sessions: the setup, then the commands and notes as typed, one per line, for `replay`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from nncdbg.engine.errors import UsageError

HEAD = "# nncdbg session"
"""The beginning of a recording."""

SETUP = "# setup: "
"""The prefix of the line with the setup (see `recorded_setup`)."""

Confirm = Callable[[str], bool]
"""Asks the user a yes-or-no question; returns True for yes."""


def write_line(file: TextIO, text: str) -> None:
    """Append a line. If it cannot be written, closes the file and raises UsageError."""
    try:
        file.write(text + "\n")
        file.flush()
    except OSError as error:
        close_recording(file)
        raise UsageError(
            f"cannot record to {file.name}: {error.strerror}",
            hint="recording is off; use `record` with another file",
        ) from None


def close_recording(file: TextIO) -> None:
    """Close a recording; write errors were reported before."""
    with suppress(OSError):
        # Closing retries the failed write.
        file.close()


def is_about_recording(text: str) -> bool:
    """Return True for `record` itself, which is not recorded."""
    return text.split(maxsplit=1)[0] in ("record", "rec")
