"""The layout of a buffer: aligned, with a guard of the fill pattern on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nncdbg.engine.execution.linking import Binding
from nncdbg.engine.graph import Array
from nncdbg.engine.ops.planning import result_of
from nncdbg.stats.inspection import PATTERN_WORD, fill, is_pattern

GUARD = 64
"""Bytes of pattern before and after each buffer, which no kernel may touch."""

ALIGNMENT = 64


def span_of(size: int) -> int:
    """Bytes from one buffer's start to the next: the size, a guard, and up to the next alignment."""
    return -(-(size + GUARD) // ALIGNMENT) * ALIGNMENT


def address_of(array: Array) -> int:
    """The address of an array's first byte."""
    return int(array.__array_interface__["data"][0])


def planned(
    binding: Binding, inputs: Sequence[Any]
) -> tuple[tuple[int, ...], np.dtype[Any], int, int] | None:
    """(shape, dtype, elements, span) of the output for these inputs; None if only the kernel knows them."""
    plan = result_of(binding.op, binding.attributes, inputs)
    if plan is None:
        return None
    shape, dtype = plan
    count = int(np.prod(shape, dtype=np.int64))
    return shape, dtype, count, span_of(count * dtype.itemsize)


_PATTERN = PATTERN_WORD.to_bytes(2, "little") * 256
"""The fill pattern as it is at an even address, longer than a guard and what it takes to the alignment."""


def pattern_between(start: int, end: int) -> bytes:
    """The fill pattern from `start` to `end` of a segment, which begins at an even address."""
    odd = start & 1
    return _PATTERN[odd : odd + end - start]


def write_pattern(raw: memoryview, start: int, end: int) -> None:
    """Write the fill pattern into these bytes of a segment, which begins at an even address."""
    if end - start < len(_PATTERN):
        raw[start:end] = pattern_between(start, end)
    else:
        fill(np.asarray(raw)[start:end])


def guards(buffer: Array) -> tuple[Array, Array]:
    """The bytes before and after a buffer.  Its base is the segment that it stands in."""
    segment: Array = np.asarray(buffer.base)
    start = address_of(buffer) - address_of(segment)
    end = start + buffer.nbytes
    return segment[start - GUARD : start], segment[end : end + GUARD]


def damage(buffer: Array) -> str | None:
    """Where a kernel wrote beside a buffer, as an element counted from its start; None if nowhere."""
    before, after = guards(buffer)
    early = np.flatnonzero(~is_pattern(before))
    if len(early):
        distance = GUARD - int(early[-1])
        return f"before the start, at element -{-(-distance // buffer.itemsize)}"
    late = np.flatnonzero(~is_pattern(after))
    if len(late):
        element = buffer.size + int(late[0]) // buffer.itemsize
        return f"past the end, at element {element} of {buffer.size}"
    return None


def heal(buffer: Array) -> None:
    """Write the pattern into the guards again, so that the damage is told once."""
    for guard in guards(buffer):
        fill(guard)
