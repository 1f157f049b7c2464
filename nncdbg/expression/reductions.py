"""Functions along axes of a tensor: sums, means, quantiles, positions, sorting, cumulative sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from nncdbg.expression.operators import Function, OperandError, check_room, integer, is_text, number, truth
from nncdbg.ir.records import Array

_BLOCK = 2**16
"""Number of elements widened to f64 at a time."""


def axes_of(axis: Any, rank: int) -> tuple[int, ...] | None:
    """Return `axis` as a tuple of nonnegative axes; None for all axes."""
    if axis is None:
        return None
    several = isinstance(axis, tuple) or np.ndim(axis) == 1
    axes = tuple(integer(one, "an axis") for one in (axis if several else (axis,)))
    return normalize_axis_tuple(axes, rank)


def array_of(x: Any) -> Array:
    """Return `x` as an array of numbers.  Raises Fact for text and non-tensors."""
    return np.asarray(number(x))


def accumulator(x: Array) -> Any:
    """Return the dtype to accumulate in: f64 for narrower floats, otherwise NumPy's default."""
    if x.dtype.kind == "f":
        return np.float64
    return np.complex128 if x.dtype.kind == "c" else None


def _reduction(name: str, widened: bool = False) -> Callable[..., Any]:
    reduce = getattr(np, name)

    def apply(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
        array = array_of(x)
        extra = {"dtype": accumulator(array)} if widened else {}
        return reduce(array, axis=axes_of(axis, array.ndim), keepdims=truth(keepdims), **extra)

    return apply


def _counted(x: Array, axis: tuple[int, ...] | None) -> int:
    """Return the number of elements reduced to each result of a reduction over `axis`."""
    return x.size if axis is None else math.prod(x.shape[one] for one in axis)


def _mean(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    array = array_of(x)
    along = axes_of(axis, array.ndim)
    wide = accumulator(array) or np.float64
    total = np.sum(array, axis=along, keepdims=truth(keepdims), dtype=wide)
    return total / np.float64(_counted(array, along))


def _squares(x: Array, center: Any, axis: tuple[int, ...] | None, keepdims: bool) -> Any:
    """Return the sum of |x - center|^2 in f64.

    A whole tensor is reduced block by block, because a widened copy would be several times its size.
    """
    if axis is not None or x.size <= _BLOCK:
        return np.sum(np.abs(x - center) ** 2, axis=axis, keepdims=keepdims)
    flat, middle = x.reshape(-1), np.reshape(center, ())[()]
    blocks = [np.sum(np.abs(flat[i : i + _BLOCK] - middle) ** 2) for i in range(0, flat.size, _BLOCK)]
    total = np.sum(blocks)
    return total.reshape((1,) * x.ndim) if keepdims else total


def _variance(x: Any, axis: Any = None, keepdims: Any = False, ddof: Any = 0) -> Any:
    array = array_of(x)
    along = axes_of(axis, array.ndim)
    squares = _squares(array, _mean(array, axis, True), along, truth(keepdims))
    return squares / np.float64(_counted(array, along) - integer(ddof, "ddof"))


def _norm(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    array = array_of(x)
    zero = np.complex128(0) if array.dtype.kind == "c" else np.float64(0)
    return np.sqrt(_squares(array, zero, axes_of(axis, array.ndim), truth(keepdims)))


def _quantile(x: Any, q: Any, axis: Any = None, keepdims: Any = False) -> Any:
    array, levels = array_of(x), np.asarray(number(q), dtype=np.float64)
    along = axes_of(axis, array.ndim)
    if levels.size > 1000:
        raise OperandError(f"{levels.size} quantiles at once are too many")
    if array.size == 0:
        raise OperandError("an empty tensor has no quantiles")
    check_room((levels.size, array.size // _counted(array, along)), 8, (array,))
    wide = array.astype(np.float64) if array.dtype.kind in "biuf" else array
    return np.quantile(wide, levels, axis=along, keepdims=truth(keepdims))


def _position(name: str) -> Callable[..., Any]:
    find = getattr(np, name)

    def apply(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
        along = None if axis is None else integer(axis, "an axis")
        return find(array_of(x), axis=along, keepdims=truth(keepdims))

    return apply


_DIVISOR = "PyTorch divides by N - 1: write {}(x, ddof=1)"

REDUCTIONS: dict[str, Function] = {
    "min": Function.of(_reduction("min"), "the smallest element; NaN if any element is NaN"),
    "max": Function.of(_reduction("max"), "the largest element; NaN if any element is NaN"),
    "mean": Function.of(_mean, "the mean, in f64"),
    "median": Function.of(
        lambda x, axis=None, keepdims=False: _quantile(x, 0.5, axis, keepdims),
        "the median, in f64",
        torch="PyTorch returns the lower middle element",
    ),
    "std": Function.of(
        lambda x, axis=None, keepdims=False, ddof=0: np.sqrt(_variance(x, axis, keepdims, ddof)),
        "the standard deviation, in f64; the divisor is N - ddof (default: 0)",
        torch=_DIVISOR.format("std"),
    ),
    "var": Function.of(
        _variance,
        "the variance, in f64; the divisor is N - ddof (default: 0)",
        torch=_DIVISOR.format("var"),
    ),
    "sum": Function.of(_reduction("sum", widened=True), "the sum; in f64 for floats"),
    "prod": Function.of(_reduction("prod", widened=True), "the product; in f64 for floats"),
    "norm": Function.of(_norm, "the square root of the sum of squares, in f64"),
    "any": Function.of(_reduction("any"), "whether any element is true"),
    "all": Function.of(_reduction("all"), "whether all elements are true"),
    "count": Function.of(_reduction("count_nonzero"), "the number of true or nonzero elements"),
    "argmin": Function.of(_position("argmin"), "the position of the smallest element"),
    "argmax": Function.of(_position("argmax"), "the position of the largest element"),
    "quantile": Function.of(_quantile, "the quantile q (0 to 1); if q is a list, one for each"),
    "percentile": Function.of(
        lambda x, q, axis=None, keepdims=False: _quantile(x, np.float64(number(q)) / 100, axis, keepdims),
        "the percentile q (0 to 100); if q is a list, one for each",
    ),
}


# -- order and position ----------------------------------------------------------------------------


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


ORDERING: dict[str, Function] = {
    "sort": Function.of(_sort, "the elements sorted along the axis (default: -1); NaN last"),
    "argsort": Function.of(_argsort, "the indices that sort x along the axis (default: -1)"),
    "topk": Function.of(
        _topk, "the k largest elements along the axis (default: -1), as `.values` and `.indices`"
    ),
    "unique": Function.of(
        _unique, "the distinct elements, or `.values` and `.counts` with return_counts=true"
    ),
    "argwhere": Function.of(_argwhere, "the indices of the true or nonzero elements"),
    "cumsum": Function.of(_cumulative("cumsum"), "the cumulative sums along the axis, or over all elements"),
    "cumprod": Function.of(
        _cumulative("cumprod"), "the cumulative products along the axis, or over all elements"
    ),
}
