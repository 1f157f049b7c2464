"""The allocators `debug`, and `lean` for a watch.

In `debug`, addresses are unique in a run, and every fresh buffer is NaN.

Buffers are taken one after the other from a large reserved region. When all buffers of a page are
dropped, the page returns to the system, and its addresses are not reused before the program restarts.
The region is filled with one pattern that is a quiet NaN in every common float type, so fill and guards
cost one pass for many buffers.

In `lean`, results stay where kernels put them, and are checked for NaN and Inf.  The kernels of nncdbg write
every element of their results and stay in bounds; its tests verify that. So their results need no fill or
guards, and a NaN cannot originate at a statement that only moves elements. Results of `nncdbg.Empty`, and of
the kernels of an op library, get the buffers of `debug`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nncdbg.engine.execution.findings import Finding
from nncdbg.engine.execution.linking import Binding, Execute, LineOf
from nncdbg.engine.execution.machine import Machine
from nncdbg.engine.memory.buffers import GUARD, address_of
from nncdbg.engine.memory.inspected import INF, NAN, InspectedAllocation
from nncdbg.engine.memory.region import MemoryRegion
from nncdbg.engine.ops.influence import Content
from nncdbg.ir.records import Array
from nncdbg.stats.inspection import holds, is_finite

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


_NONFINITE = NAN | INF


class LeanAllocation(DebugAllocation):
    """Checks every result that may contain NaN or Inf; uninitialized reads are reported as in `debug`."""

    name = "lean"
    trusts_kernels = True

    def wrap(self, binding: Binding) -> Execute:
        if binding.node.op == "nncdbg.Empty":
            return super().wrap(binding)
        return self._filling(binding) if binding.op.content is Content.UPDATED else self._running(binding)

    def _running(self, binding: Binding) -> Execute:
        if binding.op.foreign:
            return super()._running(binding)
        return self._moving(binding) if moves(binding) else self._looking(binding)

    def _moving(self, binding: Binding) -> Execute:
        """Return the instruction of a statement that only copies elements of its operands."""
        kernel, unwritten = binding.kernel, self.unwritten.by_id

        def execute(*inputs: Any) -> Any:
            if unwritten:
                self._check_reads(binding, inputs)
            return kernel(*inputs)

        return execute

    def _looking(self, binding: Binding) -> Execute:
        kernel, unwritten, report = binding.kernel, self.unwritten.by_id, self._report_nonfinite

        def execute_one(*inputs: Any) -> Any:
            if unwritten:
                self._check_reads(binding, inputs)
            result = kernel(*inputs)
            if self.watched & _NONFINITE and not is_finite(result):
                report(binding, inputs, 0, result)
            return result

        def execute_several(*inputs: Any) -> Any:
            if unwritten:
                self._check_reads(binding, inputs)
            results = kernel(*inputs)
            for index, result in enumerate(results):
                if self.watched & _NONFINITE and not is_finite(result):
                    report(binding, inputs, index, result)
            return results

        return execute_several if binding.several else execute_one

    def _report_nonfinite(self, binding: Binding, inputs: Sequence[Any], index: int, result: Any) -> None:
        for flag, kind in ((NAN, "nan"), (INF, "inf")):
            if flag & self.watched and holds(result, kind):
                self.report(Finding(kind, binding, "", inputs, index, result=result))


def moves(binding: Binding) -> bool:
    """Whether a statement only moves elements, or makes finite constants."""
    if binding.op.content not in (Content.MOVED, Content.CONSTANT):
        return False
    given = binding.attributes.values()
    return all(
        is_finite(np.asarray(each)) for each in given if isinstance(each, (np.ndarray, np.generic, float))
    )
