"""Reading of files that a user or another file names: only regular ones, because a pipe or device blocks."""

from __future__ import annotations

import errno
import os
import stat


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
