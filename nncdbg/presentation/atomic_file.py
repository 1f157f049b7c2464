"""Atomic file writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from nncdbg.engine.errors import UsageError


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces `path` when the block ends without an error.

    Raises UsageError for a directory, and if the file cannot be written.
    """
    if os.path.isdir(path):
        raise UsageError(f"cannot write {path}: it is a folder", hint="use the path of a file in that folder")
    draft = path.with_name(path.name + ".part")
    try:
        with draft.open("wb") as file:
            yield file
        draft.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        # After success the temporary file is gone; if it could not be created, it cannot be deleted either.
        with suppress(OSError):
            draft.unlink()
