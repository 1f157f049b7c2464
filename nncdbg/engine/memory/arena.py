"""The allocators `arena` and `poison`: memory is used again once the plan says that a value is dead.

As in production, so bugs of the plan show as they do there.  `poison` fills memory with the
pattern of fresh memory when it is freed, so that old data cannot pass for new.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from nncdbg.engine.code import Statement
from nncdbg.engine.graph import Array
from nncdbg.engine.memory.blocks import Block, Heap
from nncdbg.engine.memory.buffers import GUARD, write_pattern
from nncdbg.engine.memory.planner import Plan, by_liveness
from nncdbg.engine.memory.reusing import ReusingAllocation


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
        heap, size = self.heap, prod(shape) * dtype.itemsize
        block = heap.take(span, size, self._owner)
        start, raw = block.start, heap.raw[block.number]
        write_pattern(raw, start - GUARD, start)
        write_pattern(raw, start + size, start + block.span)
        buffer: Array = np.ndarray(shape, dtype, block.segment, start)
        self._know(buffer, block)
        return buffer, heap.bases[block.number] + start

    def _free(self, block: Block, after: Statement) -> None:
        self.heap.free(block, after)
        if self.poison:
            write_pattern(self.heap.raw[block.number], block.start, block.start + block.span)
