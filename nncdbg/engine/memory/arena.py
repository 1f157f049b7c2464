"""The allocators `arena` and `poison`: memory is used again once the plan says that a value is dead.

As in production, so bugs of the plan show as they do there.  `poison` fills memory with the
pattern of fresh memory when it is freed, so that old data cannot pass for new.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nncdbg.engine.code import Statement
from nncdbg.engine.graph import Array
from nncdbg.engine.memory.blocks import Block, Heap
from nncdbg.engine.memory.buffers import GUARD, address_of
from nncdbg.engine.memory.planner import Plan, by_liveness
from nncdbg.engine.memory.reusing import ReusingAllocation
from nncdbg.stats.inspection import fill


class ArenaAllocation(ReusingAllocation):
    """Results in one reusable arena, freed by `plan`; with `poison`, refilled when freed."""

    def __init__(self, plan: Plan = by_liveness, *, poison: bool = False) -> None:
        super().__init__(plan)
        self.name = "poison" if poison else "arena"
        self.poison = poison
        self.heap = Heap()

    def live_bytes(self) -> int:
        """Bytes of the blocks that are not freed."""
        return self.heap.live_bytes

    def _renew(self) -> None:
        self.heap = Heap()

    def allocate(self, shape: Sequence[int], dtype: Any, span: int) -> tuple[Array, int]:
        assert self._owner is not None
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        block = self.heap.take(span, size, self._owner)
        segment = np.asarray(block.segment)
        fill(segment[block.start - GUARD : block.start])
        fill(segment[block.start + size : block.start + block.span])
        buffer: Array = np.ndarray(shape, dtype, block.segment, block.start)
        self._know(buffer, block)
        return buffer, address_of(buffer)

    def _free(self, block: Block, after: Statement) -> None:
        self.heap.free(block, after)
        if self.poison:
            fill(np.asarray(block.segment)[block.start : block.start + block.span])
