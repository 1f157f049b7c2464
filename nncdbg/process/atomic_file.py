"""Atomic file writes."""

from __future__ import annotations

import os
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
