"""Addresses that are handed out once: segments of pages filled with the pattern.

Large ranges are reserved without memory behind them; a segment whose buffers are all dropped
gives its pages back to the system, and its addresses do not come again in this run.
"""

from __future__ import annotations

import mmap
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from nncdbg.engine.errors import RunError

_PAGE = mmap.PAGESIZE
_RANGE = 1 << 36
_CHECKED = 1 << 26
"""From this size on, a segment is refused if the machine has not the memory for it."""
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if os.uname().sysname == "Linux" else 0)
_PATTERN = np.uint64(0x7FFF7FFF7FFF7FFF)


class Segment(np.ndarray[Any, Any]):
    """Pages that buffers stand in.  Its own type, so that it stays the base of views of buffers."""


class Region:
    """Hands out segments from low to high addresses, range after range.

    `live_bytes` counts the segments that some array still stands in.
    """

    def __init__(self) -> None:
        self._ranges: list[mmap.mmap] = []
        self._used = self._size = 0
        self.live_bytes = 0

    def segment(self, size: int) -> Segment:
        """A fresh, filled uint8 array of at least `size` bytes, whole pages.

        Raises RunError if the machine has not the memory.
        """
        size = -(-size // _PAGE) * _PAGE
        if size >= _CHECKED:
            _check_memory(size)
        if self._used + size > self._size:
            self._reserve(size)
        pages, start = self._ranges[-1], self._used
        self._used += size
        segment = Segment((size,), np.uint8, pages, start)
        segment.view(np.uint64).fill(_PATTERN)
        self.live_bytes += size
        weakref.finalize(segment, self._release, pages, start, size).atexit = False
        return segment

    def _release(self, pages: mmap.mmap, start: int, size: int) -> None:
        self.live_bytes -= size
        pages.madvise(mmap.MADV_DONTNEED, start, size)

    def _reserve(self, least: int) -> None:
        """Reserve the next range; the older ones stay reserved, so that no address comes twice."""
        size = max(_RANGE, least)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        while True:
            try:
                self._ranges.append(mmap.mmap(-1, size, flags=flags))
                break
            except (OSError, ValueError) as error:
                if size == least:
                    raise RunError(
                        f"out of memory: {_sized(least)} of addresses cannot be reserved",
                        hint="give smaller inputs, or use --allocator arena, which reuses memory",
                    ) from error
                # A limit on address space (ulimit -v) asks for less at a time.
                size = max(least, size >> 2)
        self._used, self._size = 0, size


def _check_memory(size: int) -> None:
    available = available_memory()
    if size > available:
        raise RunError(
            f"out of memory: a buffer of {_sized(size)} is asked for, {_sized(available)} are available",
            hint="give smaller inputs (--dim), or less to --history",
        )


def available_memory() -> int:
    """Bytes that can be taken without swapping, as the system tells; else all there are."""
    table = Path("/proc/meminfo")
    if table.exists():
        for line in table.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _sized(size: int) -> str:
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"
