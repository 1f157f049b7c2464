"""Recorded sessions: the setup, then the commands and notes as typed, one a line, for `replay`."""

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
"""The start of the line with the setup (see `recorded_setup`)."""

Confirm = Callable[[str], bool]
"""Asks the person at the terminal a question; whether the answer is yes."""


def start_recording(
    path: str, debugger: Debugger, title: str, *, force: bool = False, confirm: Confirm | None = None
) -> TextIO:
    """Open `path` for a session on the model `title`, and write its setup.

    A recording that is there is overwritten with `force`, or if `confirm` says so.  Raises UsageError if
    neither does, if the file is something else than a recording, or if it cannot be written.
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
    """Add a line; UsageError, with the file closed, if it cannot be written."""
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
    """Close a recording; every line has been written, or reported as not written, before."""
    with suppress(OSError):
        # Closing tries once more to write what could not be written.
        file.close()


def is_about_recording(text: str) -> bool:
    """True for `record` itself, which does not belong into a recording."""
    return text.split(maxsplit=1)[0] in ("record", "rec")
