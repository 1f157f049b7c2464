"""The allocator `debug`: addresses are unique in a run, and every fresh buffer is NaN.

Buffers are taken one after the other from a large reserved region. When all buffers of a page are
dropped, the page returns to the system, and its addresses are not reused before the program restarts.
The region is filled with one pattern that is a quiet NaN in every common float type, so fill and guards
cost one pass for many buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nncdbg.engine.execution.linking import LineOf
from nncdbg.engine.execution.machine import Machine
from nncdbg.engine.memory.buffers import GUARD, address_of
from nncdbg.engine.memory.inspected import InspectedAllocation
from nncdbg.engine.memory.region import MemoryRegion
from nncdbg.ir.records import Array

_SMALL_SEGMENT = 1 << 18

_LARGE = 1 << 16
"""Bytes above which a buffer that does not fit into the current segment gets a separate one."""


class DebugAllocation(InspectedAllocation):
    """Buffers that are never reused."""

    name = "debug"

    def __init__(self) -> None:
        super().__init__()
        self.region = MemoryRegion()
        self._over: Callable[[], None] = _nobody
        self._segment = self.region.segment(_SMALL_SEGMENT)
        self._base = address_of(self._segment)
        self._offset = GUARD
        self._limit = len(self._segment)

    def live_bytes(self) -> int:
        """Return the size in bytes of the segments with live buffers."""
        return self.region.live_bytes

    def drain(self) -> int:
        return super().drain() + self.region.drain()

    def begin(self, machine: Machine, over: Callable[[], None], line: LineOf) -> None:
        super().begin(machine, over, line)
        self._over = over

    def begin_again(self) -> None:
        self.region.begin_run()
        self._offset = self._limit

    def allocate(self, shape: Sequence[int], dtype: Any, span: int) -> tuple[Array, int]:
        """Return a fresh buffer and its address; `span` is its padded size (see `span_of`)."""
        offset = self._offset
        end = offset + span
        if end > self._limit:
            if span > _LARGE:
                return self._alone(shape, dtype, span)
            self._grow()
            offset, end = GUARD, GUARD + span
        self._offset = end
        return np.ndarray(shape, dtype, self._segment, offset), self._base + offset

    def _alone(self, shape: Sequence[int], dtype: Any, span: int) -> tuple[Array, int]:
        """Return a buffer in a separate segment; small buffers continue in the current one."""
        segment = self.region.segment(GUARD + span)
        self._over()
        return np.ndarray(shape, dtype, segment, GUARD), address_of(segment) + GUARD

    def _grow(self) -> None:
        self._segment = self.region.segment(_SMALL_SEGMENT)
        self._over()
        self._base = address_of(self._segment)
        self._limit = len(self._segment)


def _nobody() -> None:
    """Ignore the budget until `begin` sets a callback."""
