"""Pipes: bytes pending, and capacity."""

from __future__ import annotations

import fcntl
import select
import termios
from array import array


def pending(descriptor: int) -> int:
    """Return the number of bytes in a pipe, from either end."""
    count = array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return count[0]


def capacity(descriptor: int) -> int:
    """Return the capacity of a pipe in bytes; the guaranteed minimum if the system cannot report it."""
    size = getattr(fcntl, "F_GETPIPE_SZ", None)  # only Linux has it
    return select.PIPE_BUF if size is None else fcntl.fcntl(descriptor, size)
