"""Private copies of operands: measured kernels never receive a tensor of the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nncdbg.engine.backends import Backend


def host_copies(values: Sequence[Any], holding: Backend) -> list[Any]:
    """Return copies of operands in host memory that shares no byte with the values of the run."""
    return [_copied(holding.to_host(value)) for value in values]


def placed_copies(copies: Sequence[Any], holding: Backend) -> list[Any]:
    """Return further copies, held as the backend of the run holds its values."""
    return [_placed(_copied(copy), holding) for copy in copies]


def changed_operand(copies: Sequence[Any], placed: Sequence[Any], holding: Backend) -> int | None:
    """Return the number of the first operand that a kernel wrote to; None if it wrote to none."""
    for index, (copy, value) in enumerate(zip(copies, placed, strict=True)):
        if not same_bits(copy, holding.to_host(value)):
            return index
    return None


def same_bits(one: Any, other: Any) -> bool:
    """Return whether two values have the same types, sizes and bits; NaN equals the same NaN."""
    if isinstance(one, (list, tuple)):
        alike = isinstance(other, (list, tuple)) and len(one) == len(other)
        return alike and all(map(same_bits, one, other))
    if not isinstance(one, (np.ndarray, np.generic)):
        return one is other
    first, second = np.asarray(one), np.asarray(other)
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    if first.dtype.hasobject:
        return bool((first == second).all())
    return first.tobytes() == second.tobytes()


def _copied(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_copied(item) for item in value]
    return np.array(value) if isinstance(value, (np.ndarray, np.generic)) else value


def _placed(copy: Any, holding: Backend) -> Any:
    if isinstance(copy, list):
        return [_placed(item, holding) for item in copy]
    return holding.to_device(copy)
