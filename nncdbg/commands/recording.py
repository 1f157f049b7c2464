"""Recorded sessions: the setup, then the commands and notes as typed, one per line, for `replay`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import msgspec

from nncdbg.engine.errors import UsageError

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger

_HEAD = "# nncdbg session"

SETUP = "# setup: "
"""The prefix of the line with the setup (see `recorded_setup`)."""

Confirm = Callable[[str], bool]
"""Asks the user a yes-or-no question; returns True for yes."""


def start_recording(
    path: str, debugger: Debugger, title: str, *, force: bool = False, confirm: Confirm | None = None
) -> TextIO:
    """Open `path` for a session on the model `title`, and write its setup.

    An existing recording is overwritten with `force`, or if `confirm` returns True. Raises UsageError if
    neither is the case, if the file is not a recording, or if it cannot be written.
    """
    from nncdbg.commands.recorded_setup import setup_of

    try:
        _check_free(Path(path), force, confirm)
        setup = msgspec.json.encode(setup_of(debugger, title)).decode()
        file = open(path, "w", encoding="utf-8")  # noqa: SIM115  it stays open for the session
    except OSError as error:
        raise UsageError(f"cannot record to {path}: {error.strerror}") from None
    write_line(file, f"{_HEAD}: {' '.join(title.split())}\n{SETUP}{setup}")
    return file


def _check_free(path: Path, force: bool, confirm: Confirm | None) -> None:
    if not path.is_file() or path.stat().st_size == 0:
        return
    with path.open("rb") as file:
        ours = file.read(len(_HEAD)) == _HEAD.encode()
    if not ours:
        raise UsageError(f"{path} is not a recorded session, and was not changed", hint="choose another name")
    if not force and (confirm is None or not confirm(f"overwrite the recording {path}?")):
        raise UsageError(
            f"the recording {path} already exists, and was not changed",
            hint="choose another name, or overwrite the recording with --force",
        )


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
