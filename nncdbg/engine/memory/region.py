"""Addresses that are handed out once in a run: segments of pages filled with the pattern.

Large ranges are reserved without memory behind them. When all buffers of a segment are dropped, its
pages return to the system, and its addresses are not reused in this run. Segments that only an earlier
run used are kept for the next run, which requests the same sizes: a page that the system allocates anew
costs as much as filling it twice.

Large buffers are in memory files, so that an edited copy shares the unchanged pages.  A segment in a memory
file is mapped shared. A copy maps the same file privately, and the system copies a page on the first write to
it. The file is never written to after its value is complete, because a value is written once. After a fork
the child has the file too; neither process writes to old values.

Only Linux has memory files. Elsewhere, and where the system refuses one, segments are ordinary memory
and an edit copies the whole tensor.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import weakref
from collections import defaultdict, deque
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from nncdbg.engine.memory.buffers import address_of
from nncdbg.errors import OutOfMemory
from nncdbg.ir.records import Array


class Segment(np.ndarray[Any, Any]):
    """Pages that buffers are placed in, as a type that stays the base of views of buffers.

    `file` is the descriptor of the memory file behind it, None for ordinary memory. For a private copy
    of such a file, `source` is the segment that keeps it open, and `changed` lists the byte ranges that
    differ from it.
    """

    file: int | None = None
    source: Segment | None = None
    changed: list[tuple[int, int]]

    def __array_finalize__(self, of: Any) -> None:
        self.file, self.source, self.changed = None, None, []


LEAST = 1 << 29
"""Size in bytes from which a segment is a memory file.

Each run allocates the pages of a memory file anew, which costs two to three times as much as filling
them; below this size a whole copy for an edit is cheap enough.
"""

_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_FIXED = 0x10
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if os.uname().sysname == "Linux" else 0)
_FAILED = ctypes.c_void_p(-1).value


def memory_file(size: int) -> int | None:
    """Create a memory file and return its descriptor; None if the system refuses."""
    if not hasattr(os, "memfd_create"):
        return None
    try:
        file = os.memfd_create("nncdbg", os.MFD_CLOEXEC)
    except OSError:
        return None
    try:
        os.ftruncate(file, size)
    except OSError:
        os.close(file)
        return None
    return file


def _mmap(address: int, size: int, flags: int, file: int) -> bool:
    """Map a file, or memory for -1, over reserved pages; return False if the system refuses."""
    function = ctypes.CDLL(None).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    found: Any = function(address, size, _READ_WRITE, flags | _FIXED, file, 0)
    return bool(found != _FAILED)


# -- copies ----------------------------------------------------------------------------------------------


def writable_copy(array: Array) -> Array:
    """Return a copy of a tensor that may be written to.

    A large tensor in a memory file shares its pages with the copy. Another large tensor is copied into
    a new memory file, so that the next copy shares pages.
    """
    if array.nbytes < LEAST or array.dtype.hasobject or not array.flags.c_contiguous:
        return np.array(array)
    base = _segment_of(array)
    if base is not None and base.file is not None:
        return _sharing(array, base)
    return _in_own_file(array)


def _segment_of(array: Array) -> Segment | None:
    """Return the segment of an array or of the array that it is a view of; None without one."""
    base: Any = array.base
    while isinstance(base, np.ndarray) and not isinstance(base, Segment):
        base = base.base
    return base if isinstance(base, Segment) else None


def _sharing(array: Array, base: Segment) -> Array:
    assert base.file is not None
    pages = mmap.mmap(base.file, len(base), flags=mmap.MAP_PRIVATE, prot=_READ_WRITE)
    copy = Segment((len(base),), np.uint8, pages, 0)
    # Keep the file and its contents as long as the copy.
    copy.file, copy.source = base.file, base if base.source is None else base.source
    for start, end in base.changed:
        copy[start:end] = base[start:end]
    copy.changed = list(base.changed)
    result: Array = np.ndarray(array.shape, array.dtype, copy, address_of(array) - address_of(base))
    return result


def _in_own_file(array: Array) -> Array:
    size = -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    file = memory_file(size)
    if file is None:
        return np.array(array)
    pages = mmap.mmap(file, size, flags=mmap.MAP_SHARED, prot=_READ_WRITE)
    segment = Segment((size,), np.uint8, pages, 0)
    segment.file = file
    weakref.finalize(segment, os.close, file).atexit = False
    # Writes to this copy go to the file, which no other array shares yet.
    result: Array = np.ndarray(array.shape, array.dtype, segment, 0)
    np.copyto(result, array)
    return result


def note_change(array: Array, index: Any) -> None:
    """Record which bytes of a copy differ from its file, after a write to `array[index]`."""
    base = _segment_of(array)
    if base is None or base.source is None:
        return
    start, end = 0, len(base)
    if _is_basic(index):
        index = index if isinstance(index, tuple) else (index,)
        part = array[index if Ellipsis in index else (*index, ...)]
        low, high = np.lib.array_utils.byte_bounds(part)
        start, end = low - address_of(base), high - address_of(base)
    base.changed.append((start, end))


def _is_basic(index: Any) -> bool:
    """Whether an index selects a view: numbers, slices and an ellipsis."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(
        part is Ellipsis or isinstance(part, (slice, int, np.integer)) and not isinstance(part, bool)
        for part in parts
    )


_PAGE = mmap.PAGESIZE
_RANGE = 1 << 36
_CHECKED = 1 << 26
"""Size in bytes from which a segment is refused if the machine lacks the memory."""
_HUGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)
"""Fresh memory costs a quarter of the time if the system allocates it in pages of 2 MiB."""
_PATTERN = np.full(1 << 12, 0x7FFF7FFF7FFF7FFF, np.uint64).view(np.uint8)


def huge_pages(size: int, flags: int = 0) -> mmap.mmap:
    """Return memory of its own, in pages of 2 MiB where the system has them.

    Raises OSError or ValueError if the system has no address space of this size.
    """
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags)
    if _HUGE_PAGES is not None:
        # A kernel without them refuses the advice.
        with contextlib.suppress(OSError):
            pages.madvise(_HUGE_PAGES)
    return pages


Place: TypeAlias = "tuple[mmap.mmap, int]"
"""A range, and the offset of a segment in it."""


def paint(segment: Segment) -> None:
    """Write the pattern into a whole segment."""
    # Copies of 32 KiB are a third faster than single stores: memcpy writes without reading first.
    end = len(segment) // len(_PATTERN) * len(_PATTERN)
    np.copyto(segment[:end].reshape(-1, len(_PATTERN)), _PATTERN)
    np.copyto(segment[end:], _PATTERN[: len(segment) - end])


class MemoryRegion:
    """Hands out segments from low to high addresses, range after range.

    `live_bytes` is the size of the segments that some array still uses.
    """

    def __init__(self) -> None:
        self._ranges: list[mmap.mmap] = []
        self._used = self._size = 0
        self._run = 0
        self._spare: defaultdict[int, deque[Place]] = defaultdict(deque)
        """Unused segments of earlier runs by size, with their pages still allocated."""
        self.live_bytes = 0

    def begin_run(self) -> None:
        """Allow addresses of earlier runs to be reused once they are free."""
        self._run += 1
        self.drain()

    def drain(self) -> int:
        """Return the pages of segments that only earlier runs used to the system; return their bytes."""
        spare = sum(size * len(places) for size, places in self._spare.items())
        self._give_back(spare)
        return spare

    def segment(self, size: int) -> Segment:
        """Return a fresh, filled uint8 array of at least `size` bytes, in whole pages.

        Raises OutOfMemory if the machine lacks the memory.
        """
        size = -(-size // _PAGE) * _PAGE
        pages, start = self._spare[size].pop() if self._spare.get(size) else self._fresh(size)
        segment = Segment((size,), np.uint8, pages, start)
        if size >= LEAST:
            segment.file = _in_file(segment)
        paint(segment)
        self.live_bytes += size
        weakref.finalize(segment, self._release, (pages, start), size, self._run, segment.file).atexit = False
        return segment

    def _fresh(self, size: int) -> Place:
        # Free spare segments of the earlier run to make room for a size that it did not use.
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
            # After a fork another process may share the file, so its pages are not written to again.
            pages, start = place
            # The addresses of the pages stay reserved.
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
            _mmap(address_of(np.frombuffer(pages, np.uint8, 1)) + start, size, flags, -1)
            os.close(file)
        elif run < self._run:
            self._spare[size].append(place)
        else:
            _vacate(place, size)

    def _give_back(self, wanted: int) -> None:
        """Return the pages of spare segments to the system, at least `wanted` bytes or all of them."""
        while wanted > 0 and self._spare:
            size, places = self._spare.popitem()
            while places and wanted > 0:
                _vacate(places.popleft(), size)
                wanted -= size
            if places:
                self._spare[size] = places

    def _reserve(self, least: int) -> None:
        """Reserve the next range; older ranges stay reserved, so that no address is reused."""
        size = max(_RANGE, least)
        while True:
            try:
                pages = huge_pages(size, _NORESERVE)
                break
            except (OSError, ValueError) as error:
                if size == least:
                    raise OutOfMemory(
                        f"out of memory: cannot reserve {_sized(least)} of address space",
                        hint="use smaller inputs, or use --allocator arena, which reuses memory",
                    ) from error
                # With a limit on address space (ulimit -v), reserve less at a time.
                size = max(least, size >> 2)
        self._ranges.append(pages)
        self._used, self._size = 0, size


def _in_file(segment: Segment) -> int | None:
    """Map a memory file over a segment and return its descriptor; None if it stays ordinary memory."""
    file = memory_file(len(segment))
    flags = mmap.MAP_SHARED | _NORESERVE
    if file is not None and not _mmap(address_of(segment), len(segment), flags, file):
        os.close(file)
        return None
    return file


def _vacate(place: Place, size: int) -> None:
    pages, start = place
    pages.madvise(mmap.MADV_DONTNEED, start, size)


def _check_memory(size: int) -> None:
    available = available_memory()
    if size > available:
        raise OutOfMemory(
            f"out of memory: a buffer needs {_sized(size)}, but only {_sized(available)} is available",
            hint="use smaller inputs (--dim), or reduce --history",
        )


def available_memory() -> int:
    """Return the bytes available without swapping; all memory if the system does not report them."""
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
