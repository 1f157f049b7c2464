"""Pipes: what stands in one, and how much can."""

from __future__ import annotations

import fcntl
import select
import termios
from array import array


def pending(descriptor: int) -> int:
    """How many bytes stand in a pipe, seen from either end."""
    count = array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return count[0]


def capacity(descriptor: int) -> int:
    """How many bytes an empty pipe takes at once; where that cannot be asked, how many every one takes."""
    size = getattr(fcntl, "F_GETPIPE_SZ", None)  # only Linux has it
    return select.PIPE_BUF if size is None else fcntl.fcntl(descriptor, size)
