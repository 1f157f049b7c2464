"""Functions that sort the elements of a tensor, or accumulate them along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nncdbg.expression.declarations import Function
from nncdbg.expression.operators import OperandError, check_room, integer, is_text, truth
from nncdbg.expression.reductions import accumulator, array_of
from nncdbg.ir.records import Array


def _along(x: Array, axis: Any) -> int:
    """Return an axis of a tensor as a nonnegative integer.  Raises Fact if it is out of range."""
    along = integer(axis, "an axis")
    if x.ndim == 0:
        raise OperandError("a scalar has no axis")
    if not -x.ndim <= along < x.ndim:
        raise OperandError(f"axis {along} is out of bounds for a tensor of {x.ndim} axes")
    return along % x.ndim


def _topk(x: Any, k: Any, axis: Any = -1, largest: Any = True) -> list[Array]:
    array = array_of(x)
    along, count = _along(array, axis), integer(k, "k")
    if not 0 <= count <= array.shape[along]:
        raise OperandError(f"k is {count}, but the axis has {array.shape[along]} elements")
    # Sorting puts NaN last, so NaN is the largest, as in PyTorch.
    order = np.argsort(array, axis=along, kind="stable")
    chosen = np.flip(order, along) if truth(largest) else order
    positions = np.take(chosen, np.arange(count), axis=along)
    return [np.take_along_axis(array, positions, along), positions]


def _sort(x: Any, axis: Any = -1, descending: Any = False) -> Any:
    array = array_of(x)
    along = _along(array, axis)
    ordered = np.sort(array, axis=along)
    return np.flip(ordered, along) if truth(descending) else ordered


def _argsort(x: Any, axis: Any = -1, descending: Any = False) -> Any:
    array = array_of(x)
    along = _along(array, axis)
    order = np.argsort(array, axis=along, kind="stable")
    return np.flip(order, along) if truth(descending) else order


def _unique(x: Any, return_counts: Any = False) -> Any:
    array = np.asarray(x) if is_text(x) else array_of(x)
    if truth(return_counts):
        return [*np.unique(array, return_counts=True)]
    return np.unique(array)


def _argwhere(x: Any) -> Any:
    array = array_of(x)
    check_room((int(np.count_nonzero(array)), array.ndim), 8, (array,))
    return np.argwhere(array)


def _cumulative(name: str) -> Callable[..., Any]:
    function = getattr(np, name)

    def apply(x: Any, axis: Any = None) -> Any:
        array = array_of(x)
        return function(array, axis=None if axis is None else _along(array, axis), dtype=accumulator(array))

    return apply


_SORTED = ("x", "axis", "descending")

ORDERING: dict[str, Function] = {
    "sort": Function(_SORTED, 1, _sort, "the elements sorted along the axis (default: -1); NaN last"),
    "argsort": Function(_SORTED, 1, _argsort, "the indices that sort x along the axis (default: -1)"),
    "topk": Function(
        ("x", "k", "axis", "largest"),
        2,
        _topk,
        "the k largest elements along the axis (default: -1), as `.values` and `.indices`",
    ),
    "unique": Function(
        ("x", "return_counts"),
        1,
        _unique,
        "the distinct elements, or `.values` and `.counts` with return_counts=true",
    ),
    "argwhere": Function(("x",), 1, _argwhere, "the indices of the true or nonzero elements"),
    "cumsum": Function(
        ("x", "axis"), 1, _cumulative("cumsum"), "the cumulative sums along the axis, or over all elements"
    ),
    "cumprod": Function(
        ("x", "axis"),
        1,
        _cumulative("cumprod"),
        "the cumulative products along the axis, or over all elements",
    ),
}
