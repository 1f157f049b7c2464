"""Large buffers in memory files, so that an edited copy shares the unchanged pages.

A segment in a memory file is mapped shared. A copy maps the same file privately, and the system copies
a page on the first write to it. The file is never written to after its value is complete, because a
value is written once. After a fork the child has the file too; neither process writes to old values.

Only Linux has memory files. Elsewhere, and where the system refuses one, segments are ordinary memory
and an edit copies the whole tensor.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Any

import numpy as np

from nncdbg.engine.memory.buffers import address_of
from nncdbg.engine.memory.segment import Segment
from nncdbg.ir.records import Array

LEAST = 1 << 29
"""Size in bytes from which a segment is a memory file.

Each run allocates the pages of a memory file anew, which costs two to three times as much as filling
them; below this size a whole copy for an edit is cheap enough.
"""

_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_FIXED = 0x10
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
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


def map_over(address: int, size: int, file: int) -> bool:
    """Map a memory file over reserved pages; return False if the system refuses."""
    return _mmap(address, size, mmap.MAP_SHARED | _NORESERVE, file)


def unmap(address: int, size: int, file: int) -> None:
    """Return the pages of a memory file to the system; their addresses stay reserved."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    _mmap(address, size, flags, -1)
    os.close(file)


def _mmap(address: int, size: int, flags: int, file: int) -> bool:
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
