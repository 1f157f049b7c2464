"""The layout of a buffer: aligned, with a guard of the fill pattern on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nncdbg.engine.execution.linking import Binding
from nncdbg.engine.ops.declaration import result_of
from nncdbg.ir.records import Array
from nncdbg.stats.inspection import PATTERN_WORD, fill, is_pattern

GUARD = 64
"""Bytes of pattern before and after each buffer, which no kernel may write."""

ALIGNMENT = 64


def span_of(size: int) -> int:
    """Return the bytes from one buffer's start to the next: the size and a guard, aligned."""
    return -(-(size + GUARD) // ALIGNMENT) * ALIGNMENT


def address_of(array: Array) -> int:
    """Return the address of an array's first byte."""
    return int(array.__array_interface__["data"][0])


def planned(
    binding: Binding, inputs: Sequence[Any]
) -> tuple[tuple[int, ...], np.dtype[Any], int, int] | None:
    """Return (shape, dtype, elements, span) of the output; None if only the kernel determines them."""
    plan = result_of(binding.op, binding.attributes, inputs)
    if plan is None:
        return None
    shape, dtype = plan
    count = int(np.prod(shape, dtype=np.int64))
    return shape, dtype, count, span_of(count * dtype.itemsize)


_PATTERN = PATTERN_WORD.to_bytes(2, "little") * 256
"""The fill pattern at an even address, longer than a guard with its alignment."""


def pattern_between(start: int, end: int) -> bytes:
    """Return the fill pattern from `start` to `end` of a segment, which begins at an even address."""
    odd = start & 1
    return _PATTERN[odd : odd + end - start]


def write_pattern(raw: memoryview, start: int, end: int) -> None:
    """Write the fill pattern into these bytes of a segment, which begins at an even address."""
    if end - start < len(_PATTERN):
        raw[start:end] = pattern_between(start, end)
    else:
        fill(np.asarray(raw)[start:end])


def guards(buffer: Array) -> tuple[Array, Array]:
    """Return the guard bytes before and after a buffer; its base is the segment that contains it."""
    segment: Array = np.asarray(buffer.base)
    start = address_of(buffer) - address_of(segment)
    end = start + buffer.nbytes
    return segment[start - GUARD : start], segment[end : end + GUARD]


def damage(buffer: Array) -> str | None:
    """Describe an out-of-bounds write by its element index; None if the guards are intact."""
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
    """Restore the pattern in the guards, so that the damage is reported once."""
    for guard in guards(buffer):
        fill(guard)
