"""Memory of results: one allocation policy per run; sizes in bytes."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Collection
from functools import cache

from nncdbg.engine.backends import Backend
from nncdbg.engine.execution.linking import Allocation
from nncdbg.engine.memory.plain import PlainAllocation
from nncdbg.errors import UsageError

ALLOCATORS = ("debug", "arena", "poison", "plain")


def allocation(name: str | Allocation, backend: Backend, in_place: Collection[str] = ()) -> Allocation:
    """Return the allocation called `name`, or the given one.

    `backend` makes the values.  `in_place` are the states that updates overwrite.  Raises UsageError for an
    unknown name, and for one that keeps old values if there are states in place.
    """
    keep_freed()
    if isinstance(name, Allocation):
        return name
    if in_place and name in ("debug", "plain"):
        raise UsageError(
            f"states in place need an allocator that reuses memory; {name} keeps old values",
            hint="use --allocator arena or poison, or omit --allocator",
        )
    if name == "plain":
        return PlainAllocation(backend.storage)
    if name == "debug":
        from nncdbg.engine.memory.debug import DebugAllocation

        return DebugAllocation()
    if name in ("arena", "poison"):
        from nncdbg.engine.memory.states_in_place import arena_of

        return arena_of(in_place, poison=name == "poison")
    raise UsageError(f"unknown allocator {name!r}", hint=f"use one of: {', '.join(ALLOCATORS)}")


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters from glibc's malloc.h."""

KEPT = 1 << 30
"""Bytes at the top of the heap beyond which freed memory returns to the system."""

_LARGEST_IN_HEAP = 1 << 25
"""Bytes above which blocks get separate mappings: the maximum that glibc accepts."""


@cache
def keep_freed() -> None:
    """Keep memory that NumPy frees in the process: set glibc's thresholds once.

    A run frees all its values when it restarts, and kernels free their temporaries.  By default glibc
    returns blocks above 128 KB each time, and fresh pages cost more than most kernels do: without this, a
    run of densenet121 takes 1.7 times as long.  Does nothing without glibc or if the user has set MALLOC_*.
    """
    set_by_user = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    mallopt = None if set_by_user or os.name != "posix" else getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST_IN_HEAP)
        mallopt(_TRIM_THRESHOLD, KEPT)


_UNITS = {"": 1, "B": 1, "K": 10**3, "KB": 10**3, "M": 10**6, "MB": 10**6, "G": 10**9, "GB": 10**9}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40, "T": 10**12, "TB": 10**12}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*\Z")


def parse_bytes(size: int | str | None, device: int | None = None) -> int:
    """Parse a number of bytes, or text such as ``4GiB`` or ``500MB``.

    None is a quarter of the machine's memory, or of the bytes `device` of a device with less memory.
    Raises UsageError for anything else.
    """
    if size is None:
        host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return (host if device is None else min(host, device)) // 4
    match = _SIZE.match(str(size))
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise UsageError(
            f"{size!r} is not a size in bytes",
            hint="write a number of bytes, or a size such as 500MB or 4GiB",
        )
    return int(min(float(match[1]) * unit, 2.0**62))
