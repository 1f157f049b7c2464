"""The allocator `debug`: no address is handed out twice in a run, every fresh buffer is NaN.

Buffers come one after the other out of a large reserved region; pages whose buffers are all
dropped go back to the system, their addresses do not come again before the program starts anew.
The region is filled with one pattern that is a quiet NaN in every common float type, so fill and
guards cost one pass for many buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nncdbg.engine.execution.linking import LineOf
from nncdbg.engine.execution.machine import Machine
from nncdbg.engine.graph import Array
from nncdbg.engine.memory.buffers import GUARD, address_of
from nncdbg.engine.memory.inspected import InspectedAllocation
from nncdbg.engine.memory.region import Region

_SMALL_SEGMENT = 1 << 18

_LARGE = 1 << 16
"""Bytes from which a buffer does not begin a new segment for others too."""


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
        super().begin(machine, over, line)
        self._over = over

    def begin_again(self) -> None:
        self.region.begin_run()
        self._offset = self._limit

    def allocate(self, shape: Sequence[int], dtype: Any, span: int) -> tuple[Array, int]:
        """A fresh buffer and its address; `span` is its size with alignment and guard (see `span_of`)."""
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
        """A buffer in a segment of its own, so that small ones go on where they were."""
        segment = self.region.segment(GUARD + span)
        self._over()
        return np.ndarray(shape, dtype, segment, GUARD), address_of(segment) + GUARD

    def _grow(self) -> None:
        self._segment = self.region.segment(_SMALL_SEGMENT)
        self._over()
        self._base = address_of(self._segment)
        self._limit = len(self._segment)


def _nobody() -> None:
    """Nobody keeps a budget yet."""
