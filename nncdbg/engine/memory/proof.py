"""Classify a result that still holds the fill pattern: uninitialized, read too early, or plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nncdbg.engine.execution.linking import Binding
from nncdbg.engine.memory.buffers import GUARD
from nncdbg.ir.records import Array
from nncdbg.stats.inspection import is_pattern

OTHER_FILL = 0x3F
"""Fill byte of the second run: a moderate number in every float type, so that sums with it differ."""

UNWRITTEN = "left {count} of {size} elements of %{name} uninitialized"


def misused(binding: Binding, inputs: Sequence[Any], buffer: Array) -> str | None:
    """Describe how a kernel misused its output, by a second run over another fill; None if it did not.

    Only elements that hold the pattern in `buffer` are suspects. An element that holds the other fill after
    the second run was not written. A written element holds the same bytes in both runs; if the bytes differ,
    it was computed from the previous contents of the buffer. Such a read is detected in types whose
    arithmetic propagates the bits of a NaN: f16, f32, f64.
    """
    assert binding.kernel_into is not None
    suspect = is_pattern(buffer).reshape(-1)
    second = _buffer_like(buffer)
    binding.kernel_into(*inputs, second)
    left = suspect & (bytes_of(second) == OTHER_FILL).all(axis=1)
    depends = suspect & ~left & (bytes_of(buffer) != bytes_of(second)).any(axis=1)
    if depends.any():
        template = "read %{name}'s buffer before writing it: {count} of {size} elements are wrong"
        return misread_message(binding, 0, buffer, suspect, template)
    if left.any():
        return misread_message(binding, 0, buffer, left, UNWRITTEN)
    return None


def _buffer_like(buffer: Array) -> Array:
    """Return a buffer with another fill, with guards for a kernel that writes out of bounds."""
    memory = np.full(2 * GUARD + buffer.nbytes, OTHER_FILL, np.uint8)
    return np.ndarray(buffer.shape, buffer.dtype, memory, GUARD)


def bytes_of(array: Array) -> Array:
    """Return the bytes of an array of numbers, u8[elements, itemsize]."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, array.itemsize)


def misread_message(binding: Binding, output: int, buffer: Array, wrong: Array, template: str) -> str:
    """Format a message about the elements `wrong` (bool[elements]) of a result, with the first index."""
    places = np.flatnonzero(wrong)
    where = [int(i) for i in np.unravel_index(int(places[0]), buffer.shape)]
    name = binding.node.outputs[output].name
    what = template.format(count=len(places), size=buffer.size, name=name)
    return f"{binding.node.op} {what}, the first at {where}"
