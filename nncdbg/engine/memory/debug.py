"""The allocator `debug`: no address is handed out twice in a run, every fresh buffer is NaN.

Buffers come one after the other out of a large reserved region; pages whose buffers are all
dropped go back to the system, their addresses do not come again.  The region is filled with
one pattern that is a quiet NaN in every common float type, so fill and guards cost one pass
for many buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nncdbg.engine.graph import Array
from nncdbg.engine.linking import LineOf
from nncdbg.engine.machine import Machine
from nncdbg.engine.memory.buffers import GUARD, address_of
from nncdbg.engine.memory.inspected import InspectedAllocation
from nncdbg.engine.memory.region import Region

_SMALL_SEGMENT = 1 << 18


class DebugAllocation(InspectedAllocation):
    """Buffers that are never reused."""

    name = "debug"

    def __init__(self) -> None:
        super().__init__()
        self.region = Region()
        self._over: Callable[[], None] = _nobody
        self._segment = self.region.segment(_SMALL_SEGMENT)
        self._base = address_of(self._segment)
        self._offset = GUARD
        self._limit = len(self._segment)

    def live_bytes(self) -> int:
        """Bytes of the segments in which some buffer still stands."""
        return self.region.live_bytes

    def begin(self, machine: Machine, over: Callable[[], None], line: LineOf) -> None:
        self._over = over

    def allocate(self, shape: Sequence[int], dtype: Any, span: int) -> tuple[Array, int]:
        """A fresh buffer and its address; `span` is its size with alignment and guard (see `span_of`)."""
        offset = self._offset
        end = offset + span
        if end > self._limit:
            offset, end = self._grow(span)
        self._offset = end
        return np.ndarray(shape, dtype, self._segment, offset), self._base + offset

    def _grow(self, span: int) -> tuple[int, int]:
        self._segment = self.region.segment(max(_SMALL_SEGMENT, span + GUARD))
        self._over()
        self._base = address_of(self._segment)
        self._limit = len(self._segment)
        return GUARD, GUARD + span


def _nobody() -> None:
    """Nobody keeps a budget yet."""
