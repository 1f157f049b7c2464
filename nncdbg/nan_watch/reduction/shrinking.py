"""Reduce a case's data: fewer indices along each axis, then zeros and ones in place of elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nncdbg.engine.dtypes import FLOATS, name_of
from nncdbg.ir.records import Array
from nncdbg.nan_watch.reduction.case import ReducedCase
from nncdbg.nan_watch.reduction.minimizing import minimized

_PROBES = 60
"""Most runs per axis or tensor."""
_ELEMENTS = 1 << 14
"""Most elements of a tensor whose single elements are set to 0."""

Try = Callable[[ReducedCase], bool]


def shrunk(case: ReducedCase, attempt: Try) -> ReducedCase:
    """Return the case with the least data for which `attempt` finds the same."""
    case = _shorter(case, attempt)
    return _simpler(case, attempt)


def _data(case: ReducedCase) -> dict[str, Array]:
    """Return the tensors of numbers that may be reduced."""
    held = {**case.inputs, **case.constants}
    return {
        name: array for name, array in held.items() if isinstance(array, np.ndarray) and array.dtype != object
    }


def _with(case: ReducedCase, changed: Mapping[str, Array]) -> ReducedCase:
    return replace(
        case,
        inputs={name: changed.get(name, content) for name, content in case.inputs.items()},
        constants={name: changed.get(name, array) for name, array in case.constants.items()},
    )


# -- axes ------------------------------------------------------------------------------------------


def _shorter(case: ReducedCase, attempt: Try) -> ReducedCase:
    """Remove indices: from all axes of one size together, as they are often related, then from each axis."""
    sizes = sorted({size for array in _data(case).values() for size in array.shape if size > 1}, reverse=True)
    for size in sizes:
        case = _cut(case, attempt, _axes(case, size), size)
    for name, array in _data(case).items():
        for axis in range(array.ndim):
            size = _data(case)[name].shape[axis]
            if size > 1:
                case = _cut(case, attempt, [(name, axis)], size)
    return case


def _axes(case: ReducedCase, size: int) -> list[tuple[str, int]]:
    return [
        (name, axis)
        for name, array in _data(case).items()
        for axis in range(array.ndim)
        if array.shape[axis] == size
    ]


def _cut(case: ReducedCase, attempt: Try, axes: Sequence[tuple[str, int]], size: int) -> ReducedCase:
    """Return the case with the fewest indices along these axes of equal size."""
    best = case

    def test(indices: Sequence[int]) -> bool:
        nonlocal best
        if not indices:
            return False
        smaller = _taken(case, axes, indices)
        if not attempt(smaller):
            return False
        best = smaller
        return True

    minimized(range(size), test, _PROBES)
    return best


def _taken(case: ReducedCase, axes: Sequence[tuple[str, int]], indices: Sequence[int]) -> ReducedCase:
    data = _data(case)
    changed: dict[str, Array] = {}
    for name, axis in axes:
        changed[name] = np.take(changed.get(name, data[name]), list(indices), axis)
    return _with(case, changed)


# -- elements ----------------------------------------------------------------------------------------


def _simpler(case: ReducedCase, attempt: Try) -> ReducedCase:
    """Replace tensors with zeros or ones where the finding remains, else single elements with zeros."""
    for name in _data(case):
        case = _zeros_or_ones(case, name, attempt) or _sparse(case, name, attempt)
    return case


def _zeros_or_ones(case: ReducedCase, name: str, attempt: Try) -> ReducedCase | None:
    array = _data(case)[name]
    for make in (np.zeros_like, np.ones_like):
        plain: Any = make(array)
        if _same(array, plain):
            return case
        simpler = _with(case, {name: plain})
        if attempt(simpler):
            return simpler
    return None


def _sparse(case: ReducedCase, name: str, attempt: Try) -> ReducedCase:
    """Set as many elements to 0 as possible."""
    array = _data(case)[name]
    flat = array.reshape(-1)
    with np.errstate(all="ignore"):
        places = [int(at) for at in np.flatnonzero(flat != 0)] if array.size <= _ELEMENTS else []
    best = case

    def test(kept: Sequence[int]) -> bool:
        nonlocal best
        sparse = np.zeros_like(flat)
        sparse[list(kept)] = flat[list(kept)]
        simpler = _with(case, {name: sparse.reshape(array.shape)})
        if not attempt(simpler):
            return False
        best = simpler
        return True

    minimized(places, test, _PROBES)
    return best


def _same(a: Array, b: Array) -> bool:
    if name_of(a.dtype) in FLOATS:
        with np.errstate(all="ignore"):
            return bool(np.array_equal(a.astype(np.float64), b.astype(np.float64), equal_nan=True))
    return bool(np.array_equal(a, b))
