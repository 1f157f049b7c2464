"""What a result that still looks like fresh memory is: not written, read too early, or just data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nncdbg.engine.execution.linking import Binding
from nncdbg.engine.graph import Array
from nncdbg.engine.memory.buffers import GUARD
from nncdbg.stats.inspection import is_pattern

OTHER_FILL = 0x3F
"""A moderate number in every float type, so that sums with it are other numbers."""

UNWRITTEN = "left {count} of {size} elements of %{name} uninitialized"


def misused(binding: Binding, inputs: Sequence[Any], buffer: Array) -> str | None:
    """What a kernel did wrong with its output, proved by running it again over another fill.

    Only elements that hold the pattern in `buffer` are suspects.  One that holds the other fill
    in the second run was not written.  One that was written holds the same bytes in both, whatever
    they are; if not, it was computed from what the buffer held (which shows in types whose
    arithmetic hands on the bits of a NaN: f16, f32, f64).  None if nothing is wrong.
    """
    assert binding.kernel_into is not None
    suspect = is_pattern(buffer).reshape(-1)
    second = _buffer_like(buffer)
    binding.kernel_into(*inputs, second)
    left = suspect & (bytes_of(second) == OTHER_FILL).all(axis=1)
    depends = suspect & ~left & (bytes_of(buffer) != bytes_of(second)).any(axis=1)
    if depends.any():
        told = "read %{name}'s buffer before writing it: {count} of {size} elements are wrong"
        return words(binding, 0, buffer, suspect, told)
    if left.any():
        return words(binding, 0, buffer, left, UNWRITTEN)
    return None


def _buffer_like(buffer: Array) -> Array:
    """A buffer with another fill, and room around it for a kernel that writes too far."""
    memory = np.full(2 * GUARD + buffer.nbytes, OTHER_FILL, np.uint8)
    return np.ndarray(buffer.shape, buffer.dtype, memory, GUARD)


def bytes_of(array: Array) -> Array:
    """The bytes of an array of numbers, u8[elements, bytes of one]."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, array.itemsize)


def words(binding: Binding, output: int, buffer: Array, wrong: Array, told: str) -> str:
    """`told` of the elements of a result that are `wrong` (bool[elements]), and where the first is."""
    places = np.flatnonzero(wrong)
    where = [int(i) for i in np.unravel_index(int(places[0]), buffer.shape)]
    name = binding.node.outputs[output].name
    what = told.format(count=len(places), size=buffer.size, name=name)
    return f"{binding.node.op} {what}, the first at {where}"
