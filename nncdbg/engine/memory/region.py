"""Addresses that are handed out once in a run: segments of pages filled with the pattern.

Large ranges are reserved without memory behind them; a segment whose buffers are all dropped
gives its pages back to the system, and its addresses do not come again in this run.  What only
an earlier run stood in is kept for the next one, which asks for the same sizes again: a page
that the system hands out anew costs as much as filling it twice.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections import defaultdict, deque
from pathlib import Path
from typing import TypeAlias

import numpy as np

from nncdbg.engine.errors import RunError
from nncdbg.engine.memory import shared_pages
from nncdbg.engine.memory.buffers import address_of
from nncdbg.engine.memory.segment import Segment

_PAGE = mmap.PAGESIZE
_RANGE = 1 << 36
_CHECKED = 1 << 26
"""From this size on, a segment is refused if the machine has not the memory for it."""
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if os.uname().sysname == "Linux" else 0)
_PATTERN = np.full(1 << 12, 0x7FFF7FFF7FFF7FFF, np.uint64).view(np.uint8)


Place: TypeAlias = "tuple[mmap.mmap, int]"
"""A range, and where in it a segment starts."""


def paint(segment: Segment) -> None:
    """Write the pattern into a whole segment."""
    # Copies of 32 KiB are a third faster than stores by number: the system's memcpy knows how to
    # write without reading first.
    end = len(segment) // len(_PATTERN) * len(_PATTERN)
    np.copyto(segment[:end].reshape(-1, len(_PATTERN)), _PATTERN)
    np.copyto(segment[end:], _PATTERN[: len(segment) - end])


class Region:
    """Hands out segments from low to high addresses, range after range.

    `live_bytes` counts the segments that some array still stands in.
    """

    def __init__(self) -> None:
        self._ranges: list[mmap.mmap] = []
        self._used = self._size = 0
        self._run = 0
        self._spare: defaultdict[int, deque[Place]] = defaultdict(deque)
        """By size the segments of earlier runs that nothing stands in, their pages still there."""
        self.live_bytes = 0

    def begin_run(self) -> None:
        """From here on the addresses of earlier runs may come again, once nothing stands there."""
        self._run += 1
        self._give_back(sum(size * len(places) for size, places in self._spare.items()))

    def segment(self, size: int) -> Segment:
        """A fresh, filled uint8 array of at least `size` bytes, whole pages.

        Raises RunError if the machine has not the memory.
        """
        size = -(-size // _PAGE) * _PAGE
        pages, start = self._spare[size].pop() if self._spare.get(size) else self._fresh(size)
        segment = Segment((size,), np.uint8, pages, start)
        if size >= shared_pages.LEAST:
            segment.file = _in_file(segment)
        paint(segment)
        self.live_bytes += size
        weakref.finalize(segment, self._release, (pages, start), size, self._run, segment.file).atexit = False
        return segment

    def _fresh(self, size: int) -> Place:
        # What the earlier run did not ask for comes in place of what it did.
        self._give_back(size)
        if size >= _CHECKED:
            _check_memory(size)
        if self._used + size > self._size:
            self._reserve(size)
        start = self._used
        self._used += size
        return self._ranges[-1], start

    def _release(self, place: Place, size: int, run: int, file: int | None) -> None:
        self.live_bytes -= size
        if file is not None:
            # Another process may have the file since a fork, so its pages are not written to again.
            pages, start = place
            shared_pages.unmap(_address(pages) + start, size, file)
        elif run < self._run:
            self._spare[size].append(place)
        else:
            _vacate(place, size)

    def _give_back(self, wanted: int) -> None:
        """Give the pages of spare segments back, at least `wanted` bytes or all that there are."""
        while wanted > 0 and self._spare:
            size, places = self._spare.popitem()
            while places and wanted > 0:
                _vacate(places.popleft(), size)
                wanted -= size
            if places:
                self._spare[size] = places

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
                        f"out of memory: cannot reserve {_sized(least)} of address space",
                        hint="use smaller inputs, or use --allocator arena, which reuses memory",
                    ) from error
                # A limit on address space (ulimit -v) asks for less at a time.
                size = max(least, size >> 2)
        self._used, self._size = 0, size


def _in_file(segment: Segment) -> int | None:
    """Map a memory file over a segment; its descriptor, None if the segment stays ordinary memory."""
    file = shared_pages.memory_file(len(segment))
    if file is not None and not shared_pages.map_over(address_of(segment), len(segment), file):
        os.close(file)
        return None
    return file


def _address(pages: mmap.mmap) -> int:
    return address_of(np.frombuffer(pages, np.uint8, 1))


def _vacate(place: Place, size: int) -> None:
    pages, start = place
    pages.madvise(mmap.MADV_DONTNEED, start, size)


def _check_memory(size: int) -> None:
    available = available_memory()
    if size > available:
        raise RunError(
            f"out of memory: a buffer needs {_sized(size)}, but only {_sized(available)} is available",
            hint="use smaller inputs (--dim), or reduce --history",
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
