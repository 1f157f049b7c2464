"""Files: atomic writes, reads of regular files only, and folders for files that outlive a run.

A pipe or device that a user or another file names would block its reader.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from nncdbg.errors import UsageError


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file that replaces `path` when the block ends without an error."""
    draft = path.with_name(f"{path.name}.part")
    try:
        yield draft
        draft.replace(path)
    finally:
        # After success the temporary file is gone; if it could not be created, it cannot be deleted either.
        with suppress(OSError):
            draft.unlink()


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces `path` when the block ends without an error.

    Raises UsageError for a directory, and if the file cannot be written.
    """
    if os.path.isdir(path):
        raise UsageError(f"cannot write {path}: it is a folder", hint="use the path of a file in that folder")
    try:
        with draft_of(path) as draft, draft.open("wb") as file:
            yield file
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None


def read_regular(path: str | os.PathLike[str], most: int = -1) -> bytes:
    """Return the content of a file, or its first `most` bytes.

    Raises OSError, also for a pipe, a socket or a device.
    """
    try:
        mode = os.stat(path).st_mode
    except ValueError as error:  # such as a null byte in the name
        raise OSError(errno.EINVAL, str(error), os.fspath(path)) from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
    with open(path, "rb") as file:
        return file.read(most)


def state_folder() -> Path:
    """Return `nncdbg` in the user's state folder (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "nncdbg"


def cache_folder() -> Path:
    """Return `nncdbg` in the user's cache folder: its files can be deleted at any time."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "nncdbg"
