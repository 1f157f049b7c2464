"""Memory for the copies that a recording begins with, which the next recording uses again.

Memory that the system has just allocated costs about as much as the copy into it.
"""

from __future__ import annotations

import mmap
import weakref
from typing import Any

import numpy as np
import torch

from nncdbg.engine.memory.region import huge_pages
from nncdbg.engine.process.address_space import address_space_limit

LEAST = 1 << 16
"""The bytes of a copy from which this memory is faster than that of torch."""

_BLOCK = 1 << 25
"""The bytes of a block, of which only pages that are written to take memory."""

_ALIGNMENT = 64

_MOST_SPARE = 1 << 30
"""The most bytes of unused blocks that are kept."""

_FREE = getattr(mmap, "MADV_FREE", None)
"""Lets the system take the pages of an unused block when it needs memory."""

_spare: dict[int, list[mmap.mmap]] = {}
"""Unused blocks by size."""


class CopyMemory:
    """Hands out memory from blocks; a block is free again when no tensor uses a part of it."""

    def __init__(self) -> None:
        self._block: Any = None
        self._used = 0

    def take(self, size: int) -> Any:
        """Return a uint8 tensor with a storage of `size` bytes, with any content.

        Raises OSError or ValueError if the system has no address space of this size.
        """
        if size >= _BLOCK:
            return _part(_block(size), 0, size)
        if self._block is None or self._used + size > _BLOCK:
            try:
                self._block, self._used = _block(_BLOCK), 0
            except OSError:
                # The address space is limited, and the rest is less than a block.
                return _part(_block(size), 0, size)
        start = self._used
        self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
        return _part(self._block, start, size)


def _part(block: Any, start: int, size: int) -> Any:
    """Return a tensor over a part of a block, which it keeps; its storage is only this part."""
    return torch.frombuffer(block, dtype=torch.uint8, count=size, offset=start)


def _block(size: int) -> Any:
    """Return an array of at least so many bytes, in whole pages."""
    size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    try:
        pages = _spare[size].pop()
    except (KeyError, IndexError):
        pages = huge_pages(size)
    array = np.frombuffer(pages, np.uint8)
    if _FREE is not None:
        weakref.finalize(array, _keep, pages, size).atexit = False
    return array


def _keep(pages: mmap.mmap, size: int) -> None:
    """Keep a block that became free, if there is room."""
    if address_space_limit() is not None:
        return  # The training may need the addresses (ulimit -v).
    if sum(each * len(blocks) for each, blocks in [*_spare.items()]) + size <= _MOST_SPARE:
        assert _FREE is not None
        pages.madvise(_FREE)
        _spare.setdefault(size, []).append(pages)
