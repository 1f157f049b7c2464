"""Recorded sessions: the commands as typed, one a line, so that they can be played again."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TextIO

from nncdbg.engine.errors import UsageError

_HEAD = "# nncdbg session"


def start_recording(path: str, title: str) -> TextIO:
    """Open `path` for a session on the model `title`.

    Raises UsageError if it cannot be written, or is a file of something else, which is not overwritten.
    """
    try:
        if Path(path).is_file() and not _is_recording(Path(path)):
            raise UsageError(
                f"{path} exists and is no recorded session", hint="choose another name; it was not changed"
            )
        file = open(path, "w", encoding="utf-8")  # noqa: SIM115  it stays open for the session
    except OSError as error:
        raise UsageError(f"cannot record to {path}: {error.strerror}") from None
    _write(file, f"{_HEAD}: {title}")
    return file


def _is_recording(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(len(_HEAD))
    return not start or start == _HEAD.encode()


def write_command(file: TextIO, text: str) -> None:
    """Add a line; UsageError, with the file closed, if it cannot be written."""
    _write(file, text)


def _write(file: TextIO, text: str) -> None:
    try:
        file.write(text + "\n")
        file.flush()
    except OSError as error:
        close_recording(file)
        raise UsageError(
            f"cannot record to {file.name}: {error.strerror}", hint="recording is off; the session goes on"
        ) from None


def close_recording(file: TextIO) -> None:
    """Close a recording; every line has been written, or reported as not written, before."""
    with suppress(OSError):
        # Closing tries once more to write what could not be written.
        file.close()


def is_about_recording(text: str) -> bool:
    """True for `record` itself, which does not belong into a recording."""
    return text.split(maxsplit=1)[0] in ("record", "rec")
