"""What a result that still looks like fresh memory is: not written, read too early, or just data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nncdbg.engine.graph import Array
from nncdbg.engine.linking import Binding
from nncdbg.engine.memory.buffers import GUARD
from nncdbg.stats.inspection import is_pattern

_OTHER_FILL = 0x55


def misused(binding: Binding, inputs: Sequence[Any], buffer: Array) -> str | None:
    """What a kernel did wrong with its output, proved by running it again over another fill.

    An element that holds the first pattern in `buffer` and the second one in a second buffer was
    not written.  One that was written holds the same bytes in both, whatever they are; if it does
    not, it was computed from what the buffer held before.  None if nothing is wrong.
    """
    assert binding.kernel_into is not None
    suspect = is_pattern(buffer).reshape(-1)
    second = _buffer_like(buffer)
    binding.kernel_into(*inputs, second)
    first_bytes, second_bytes = _rows(buffer), _rows(second)
    left = suspect & (second_bytes == _OTHER_FILL).all(axis=1)
    if left.any():
        return _words(binding, buffer, left, "left {count} of {size} elements of %{name} unwritten")
    depends = suspect & (first_bytes != second_bytes).any(axis=1)
    if depends.any():
        told = "read %{name}'s buffer before it wrote there, so that {count} of {size} elements are wrong"
        return _words(binding, buffer, depends, told)
    return None


def _buffer_like(buffer: Array) -> Array:
    """A buffer with another fill, and room around it for a kernel that writes too far."""
    memory = np.full(2 * GUARD + buffer.nbytes, _OTHER_FILL, np.uint8)
    return np.ndarray(buffer.shape, buffer.dtype, memory, GUARD)


def _rows(buffer: Array) -> Array:
    return buffer.reshape(-1).view(np.uint8).reshape(buffer.size, buffer.itemsize)


def _words(binding: Binding, buffer: Array, wrong: Array, told: str) -> str:
    places = np.flatnonzero(wrong)
    where = [int(i) for i in np.unravel_index(int(places[0]), buffer.shape)]
    name = binding.node.outputs[0].name
    words = told.format(count=len(places), size=buffer.size, name=name)
    return f"{binding.node.op} {words}, the first at {where}"
