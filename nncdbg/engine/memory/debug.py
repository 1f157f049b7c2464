"""The allocator `debug`: no address is handed out twice in a run, every fresh buffer is NaN.

Buffers come one after the other out of a large reserved region; pages whose buffers are all
dropped go back to the system, their addresses do not come again.  The region is filled with
one pattern that is a quiet NaN in every common float type, so fill and guards cost one pass
for many buffers.  After each kernel one compiled pass over its output checks the guards,
looks for elements that nobody wrote, and takes the statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from nncdbg.engine.dtypes import NUMPY, name_of
from nncdbg.engine.findings import Finding, Report
from nncdbg.engine.graph import Array, TensorType
from nncdbg.engine.linking import Allocation, Binding, Execute
from nncdbg.engine.memory.region import Region
from nncdbg.engine.statistics_log import MASK, ROW_BYTES, StatisticsLog
from nncdbg.stats.inspection import Flag, fill, inspect_plain, inspector

GUARD = 64
"""Bytes of pattern before and after each buffer, which no kernel may touch."""

_ALIGNMENT = 64
_SMALL_SEGMENT = 1 << 18
# Plain ints: the operators of an IntFlag are slow.
NAN, INF, UNWRITTEN = int(Flag.NAN), int(Flag.INF), int(Flag.UNWRITTEN)
GUARD_BEFORE, GUARD_AFTER = int(Flag.GUARD_BEFORE), int(Flag.GUARD_AFTER)

_shapes_of = attrgetter("shape")


class DebugAllocation(Allocation):
    """Buffers that are never reused, with guards, and every result inspected.

    `report` hears of each finding whose flag is in `watched`.  `unwritten` holds the buffers
    that nobody wrote yet, by identity.
    """

    name = "debug"
    inspects = True

    def __init__(self, report: Report, log: StatisticsLog | None) -> None:
        self.report = report
        self.log = log
        self.watched = GUARD_BEFORE | GUARD_AFTER | UNWRITTEN
        self.region = Region()
        self.unwritten: dict[int, tuple[Array, Binding]] = {}
        self._over: Callable[[], None] = _nobody
        self._segment = self.region.segment(_SMALL_SEGMENT)
        self._base = address_of(self._segment)
        self._offset = GUARD
        self._limit = len(self._segment)

    def live_bytes(self) -> int:
        """Bytes of the segments in which some buffer still stands."""
        return self.region.live_bytes

    def begin(self, machine: Any, over: Callable[[], None]) -> None:
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

    # -- statements ----------------------------------------------------------------------

    def wrap(self, binding: Binding) -> Execute:
        if binding.node.op == "nncdbg.Empty" and binding.attributes["init"] in ("nan", "none"):
            return self._empty(binding)
        if binding.kernel_into is not None and binding.op.infer is not None:
            return self._into(binding)
        return self._adopting(binding)

    def _into(self, binding: Binding) -> Execute:
        """For a kernel that writes where it is told.  The hot path of debugging: every line counts."""
        kernel, adopt = binding.kernel_into, self._adopting(binding)
        assert kernel is not None
        unwritten, allocate, mask = self.unwritten, self.allocate, MASK
        shapes_of = _tolerant_shape if any(x is None for x in binding.node.inputs) else _shapes_of
        rows, owners, position = self._row_source()
        owner = (binding, 0)
        known: tuple[Any, ...] | None = None
        shape: tuple[int, ...] = ()
        dtype: Any = None
        count = span = 0
        compiled: Any = None

        def execute(*inputs: Any) -> Any:
            nonlocal known, shape, dtype, count, span, compiled
            current = (*map(shapes_of, inputs),)
            if current != known or compiled is None:
                plan = planned(binding, inputs)
                if plan is None:
                    return adopt(*inputs)
                shape, dtype, count, span = plan
                known, compiled = current, inspector(name_of(dtype))
            if unwritten:
                self._check_reads(binding, inputs)
            buffer, address = allocate(shape, dtype, span)
            kernel(*inputs, buffer)
            row = 0
            if rows:
                number = position() & mask
                owners[number] = owner
                row = rows + number * ROW_BYTES
            if compiled is not None:
                flags = compiled(address, count, GUARD, row)
            else:
                flags = self._inspect_plain(buffer, address, row)
            if flags & self.watched:
                self._examine(binding, inputs, buffer, flags)
            return buffer

        return execute

    def _row_source(self) -> tuple[int, list[Any], Any]:
        if self.log is None:
            return 0, [], None
        return self.log.address, self.log.owners, self.log.positions.take

    def _adopting(self, binding: Binding) -> Execute:
        """For a kernel that allocates for itself: its results are copied into buffers of ours."""
        kernel = binding.kernel

        def execute(*inputs: Any) -> Any:
            if self.unwritten:
                self._check_reads(binding, inputs)
            results = kernel(*inputs)
            if not binding.several:
                return self._adopt(binding, inputs, 0, results)
            return [self._adopt(binding, inputs, index, result) for index, result in enumerate(results)]

        return execute

    def _adopt(self, binding: Binding, inputs: Sequence[Any], index: int, result: Any) -> Any:
        if result is None or isinstance(result, (list, tuple)):
            return result
        array = np.asarray(result)
        if array.dtype.hasobject:
            return array
        buffer, address = self.allocate(array.shape, array.dtype, span_of(array.nbytes))
        np.copyto(buffer, array)
        flags = self.inspect(binding, index, buffer, address)
        # A copy writes every element: what looks like the pattern here is data.
        if flags & self.watched & ~UNWRITTEN:
            self._examine(binding, inputs, buffer, flags & ~UNWRITTEN, index)
        return buffer

    def _empty(self, binding: Binding) -> Execute:
        """A tensor that nobody writes: what an op reads of it later is a finding there."""
        shape = tuple(binding.attributes["shape"])
        dtype = NUMPY[binding.attributes["dtype"]]

        def execute(*inputs: Any) -> Any:
            size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            buffer, _ = self.allocate(shape, dtype, span_of(size))
            fill(buffer)
            self.unwritten[id(buffer)] = (buffer, binding)
            return buffer

        return execute

    # -- inspection ----------------------------------------------------------------------

    def inspect(self, binding: Binding, index: int, buffer: Array, address: int) -> int:
        """Check guards and pattern of a buffer and log its statistics; the flags of `stats.inspection`."""
        row = 0
        if self.log is not None:
            number = self.log.positions.take() & MASK
            self.log.owners[number] = (binding, index)
            row = self.log.address + number * ROW_BYTES
        compiled = inspector(name_of(buffer.dtype))
        if compiled is None:
            return self._inspect_plain(buffer, address, row)
        return int(compiled(address, buffer.size, GUARD, row))

    def _inspect_plain(self, buffer: Array, address: int, row: int) -> int:
        start = address - self._base
        end = start + buffer.nbytes
        guards = np.asarray(self._segment)
        log = None
        if row and self.log is not None:
            log = self.log.rows[(row - self.log.address) // ROW_BYTES]
        return inspect_plain(
            buffer.reshape(-1), guards[start - GUARD : start], guards[end : end + GUARD], log
        )

    def _check_reads(self, binding: Binding, inputs: Sequence[Any]) -> None:
        for index, value in enumerate(inputs):
            found = self.unwritten.get(id(value))
            if found is not None:
                origin = found[1]
                name = binding.node.inputs[index]
                self.report(
                    Finding(
                        "uninitialized",
                        binding,
                        f"{binding.node.op} reads %{name}, which nobody wrote since {origin.node.op} made it",
                        inputs,
                        None,
                    )
                )

    def _examine(
        self, binding: Binding, inputs: Sequence[Any], buffer: Array, flags: int, index: int = 0
    ) -> None:
        """The rare path: some flag is set that somebody watches."""
        name = binding.node.outputs[index].name
        if flags & (GUARD_BEFORE | GUARD_AFTER) & self.watched:
            side = "before the start" if flags & GUARD_BEFORE else "past the end"
            detail = f"{binding.node.op} wrote {side} of %{name}'s buffer: {self._damage(buffer, flags)}"
            self.report(Finding("guard", binding, detail, inputs, index))
            self._heal(buffer)
        if flags & UNWRITTEN & self.watched:
            missing = self._never_written(binding, inputs, buffer)
            if missing is not None:
                self.unwritten[id(buffer)] = (buffer, binding)
                self.report(Finding("uninitialized", binding, missing, inputs, index))
        for flag, kind in ((NAN, "nan"), (INF, "inf")):
            if flags & flag & self.watched:
                self.report(Finding(kind, binding, "", inputs, index))

    def _guards(self, buffer: Array) -> tuple[Array, Array]:
        base: Array = np.asarray(buffer.base)
        start = address_of(buffer) - address_of(base)
        end = start + buffer.nbytes
        return base[start - GUARD : start], base[end : end + GUARD]

    def _damage(self, buffer: Array, flags: int) -> str:
        """The first guard byte that changed, as an offset in elements from the buffer."""
        before, after = self._guards(buffer)
        if flags & GUARD_BEFORE:
            distance = GUARD - int(np.flatnonzero(before != _pattern_bytes(before))[-1])
            return f"element -{-(-distance // buffer.itemsize)}"
        offset = int(np.flatnonzero(after != _pattern_bytes(after))[0])
        return f"element {buffer.size + offset // buffer.itemsize} of {buffer.size}"

    def _heal(self, buffer: Array) -> None:
        for guard in self._guards(buffer):
            guard[:] = _pattern_bytes(guard)

    def _never_written(self, binding: Binding, inputs: Sequence[Any], buffer: Array) -> str | None:
        """What a kernel left out, proved by running it again over another fill; None if nothing.

        An element that still holds the first pattern and, in a second buffer, the second one,
        was not written.  One that was written holds the same bytes in both.
        """
        kernel = binding.kernel_into
        assert kernel is not None
        second = np.empty(buffer.shape, buffer.dtype)
        second_bytes = second.reshape(-1).view(np.uint8)
        second_bytes[:] = 0x55
        kernel(*inputs, second)
        width = buffer.itemsize
        first_bytes = buffer.reshape(-1).view(np.uint8).reshape(-1, width)
        same = (second_bytes.reshape(-1, width) == 0x55).all(axis=1) & (
            first_bytes == _pattern_bytes(first_bytes.reshape(-1), address_of(buffer)).reshape(-1, width)
        ).all(axis=1)
        missing = np.flatnonzero(same)
        if not len(missing):
            return None
        where = [int(i) for i in np.unravel_index(int(missing[0]), buffer.shape)]
        name = binding.node.outputs[0].name
        return f"{binding.node.op} left {len(missing)} of {buffer.size} elements of %{name} unwritten, the first at {where}"


def _nobody() -> None:
    """Nobody keeps a budget yet."""


def planned(binding: Binding, inputs: Sequence[Any]) -> tuple[tuple[int, ...], Any, int, int] | None:
    """(shape, dtype, elements, span) of the output for these inputs; None if the types do not tell."""
    types = [None if x is None else TensorType(name_of(x.dtype), tuple(x.shape)) for x in inputs]
    result = binding.infer(types)[0]
    if result is None or not result.concrete or result.dtype == "str":
        return None
    assert result.shape is not None
    shape = tuple(int(size) for size in result.shape)  # type: ignore[arg-type]
    dtype = NUMPY[result.dtype]
    count = int(np.prod(shape, dtype=np.int64))
    return shape, dtype, count, span_of(count * dtype.itemsize)


def span_of(size: int) -> int:
    """Bytes from one buffer's start to the next: the size, a guard, and up to the next alignment."""
    return -(-(size + GUARD) // _ALIGNMENT) * _ALIGNMENT


def address_of(array: Array) -> int:
    """The address of an array's first byte."""
    return int(array.__array_interface__["data"][0])


def _pattern_bytes(block: Array, address: int | None = None) -> Array:
    """The pattern as it stands in a uint8 block: 0xFF at even addresses, 0x7F at odd ones."""
    start = address_of(block) if address is None else address
    return np.where((np.arange(start, start + block.size) & 1) == 0, 0xFF, 0x7F).astype(np.uint8)


def _tolerant_shape(value: Any) -> Any:
    return getattr(value, "shape", None)
