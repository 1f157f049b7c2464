"""The functions of expressions, which are also the methods of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from nncdbg.engine import dtypes
from nncdbg.engine.expression.operators import Fact, broadcast, check_room, integer, is_text, number, truth
from nncdbg.engine.graph import Array

_BLOCK = 2**16
"""Elements that are widened to f64 at a time."""


# -- reductions ------------------------------------------------------------------------------------


def _axis(axis: Any, rank: int) -> tuple[int, ...] | None:
    if axis is None:
        return None
    several = isinstance(axis, tuple) or np.ndim(axis) == 1
    axes = tuple(integer(one, "an axis") for one in (axis if several else (axis,)))
    return normalize_axis_tuple(axes, rank)


def _keep(keepdims: Any) -> bool:
    return truth(keepdims)


def _array(x: Any) -> Array:
    return np.asarray(number(x))


def _wide(x: Array) -> Any:
    """The dtype to accumulate in: f64 for narrower floats, NumPy's own choice for the rest."""
    if x.dtype.kind == "f":
        return np.float64
    return np.complex128 if x.dtype.kind == "c" else None


def _reduction(name: str, widened: bool) -> Callable[..., Any]:
    reduce = getattr(np, name)

    def apply(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
        array = _array(x)
        extra = {"dtype": _wide(array)} if widened else {}
        return reduce(array, axis=_axis(axis, array.ndim), keepdims=_keep(keepdims), **extra)

    return apply


def _counted(x: Array, axis: tuple[int, ...] | None) -> int:
    """How many elements each result of a reduction over `axis` comes from."""
    return x.size if axis is None else math.prod(x.shape[one] for one in axis)


def _mean(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    array = _array(x)
    along = _axis(axis, array.ndim)
    wide = _wide(array) or np.float64
    total = np.sum(array, axis=along, keepdims=_keep(keepdims), dtype=wide)
    return total / np.float64(_counted(array, along))


def _squares(x: Array, center: Any, axis: tuple[int, ...] | None, keepdims: bool) -> Any:
    """The sum of |x - center|^2 in f64.

    A whole tensor goes block by block: a widened copy would be several times its size.
    """
    if axis is not None or x.size <= _BLOCK:
        return np.sum(np.abs(x - center) ** 2, axis=axis, keepdims=keepdims)
    flat, middle = x.reshape(-1), np.reshape(center, ())[()]
    blocks = [np.sum(np.abs(flat[i : i + _BLOCK] - middle) ** 2) for i in range(0, flat.size, _BLOCK)]
    total = np.sum(blocks)
    return total.reshape((1,) * x.ndim) if keepdims else total


def _std(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    array = _array(x)
    along = _axis(axis, array.ndim)
    squares = _squares(array, _mean(array, axis, True), along, _keep(keepdims))
    return np.sqrt(squares / np.float64(_counted(array, along)))


def _norm(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    array = _array(x)
    zero = np.complex128(0) if array.dtype.kind == "c" else np.float64(0)
    return np.sqrt(_squares(array, zero, _axis(axis, array.ndim), _keep(keepdims)))


def _quantile(x: Any, q: Any, axis: Any = None, keepdims: Any = False) -> Any:
    array, levels = _array(x), np.asarray(number(q), dtype=np.float64)
    along = _axis(axis, array.ndim)
    if levels.size > 1000:
        raise Fact(f"{levels.size} quantiles at once are too many")
    if array.size == 0:
        raise Fact("an empty tensor has no quantiles")
    check_room((levels.size, array.size // _counted(array, along)), 8, (array,))
    wide = array.astype(np.float64) if array.dtype.kind in "biuf" else array
    return np.quantile(wide, levels, axis=along, keepdims=_keep(keepdims))


def _position(name: str) -> Callable[..., Any]:
    find = getattr(np, name)

    def apply(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
        along = None if axis is None else integer(axis, "an axis")
        return find(_array(x), axis=along, keepdims=_keep(keepdims))

    return apply


# -- element by element, and the rest --------------------------------------------------------------


def _real(name: str) -> Callable[..., Any]:
    """sqrt, exp, log: of integers in f64 (NumPy would take f16 for i8, and overflow)."""
    function = getattr(np, name)

    def apply(x: Any) -> Any:
        array = _array(x)
        return function(array.astype(np.float64) if array.dtype.kind in "biu" else array)

    return apply


def _plain(name: str) -> Callable[..., Any]:
    function = getattr(np, name)
    return lambda x: function(number(x))


def _round(x: Any, digits: Any = 0) -> Any:
    places = integer(digits, "digits")
    if abs(places) > 30:
        raise Fact(f"cannot round to {places} digits")
    return np.round(number(x), places)


def _where(condition: Any, a: Any, b: Any) -> Any:
    chosen, first, second = number(condition), number(a), number(b)
    broadcast(chosen, first, second)
    return np.where(np.asarray(chosen), first, second)


def _clip(x: Any, low: Any = None, high: Any = None) -> Any:
    array: Any = number(x)
    bounds: list[Any] = [None if bound is None else number(bound) for bound in (low, high)]
    broadcast(array, *(bound for bound in bounds if bound is not None))
    return np.clip(array, *bounds)


def _shape(x: Any) -> tuple[int, ...]:
    return np.shape(x if is_text(x) else number(x))


def _size(x: Any) -> int:
    return int(np.size(x if is_text(x) else number(x)))


def _dtype(x: Any) -> str:
    if is_text(x):
        return "str"
    return dtypes.name_of(x.dtype if isinstance(x, np.ndarray | np.generic) else _array(x).dtype)


@dataclass(frozen=True, slots=True)
class Function:
    """`run(**arguments)` under the names in `parameters`, of which the first `needed` must be given."""

    parameters: tuple[str, ...]
    needed: int
    run: Callable[..., Any] | None
    """None for `stats` and `prev`, which the evaluator asks of its scope."""


_REDUCED = ("x", "axis", "keepdims")
_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "min": _reduction("min", widened=False),
    "max": _reduction("max", widened=False),
    "sum": _reduction("sum", widened=True),
    "prod": _reduction("prod", widened=True),
    "any": _reduction("any", widened=False),
    "all": _reduction("all", widened=False),
    "count": _reduction("count_nonzero", widened=False),
    "mean": _mean,
    "std": _std,
    "norm": _norm,
    "argmin": _position("argmin"),
    "argmax": _position("argmax"),
}
_PLAIN = {name: _plain(name) for name in ("abs", "isnan", "isinf", "isfinite")}
_REAL = {name: _real(name) for name in ("sqrt", "exp", "log")}

FUNCTIONS: dict[str, Function] = {
    **{name: Function(_REDUCED, 1, run) for name, run in _REDUCTIONS.items()},
    **{name: Function(("x",), 1, run) for name, run in (_PLAIN | _REAL).items()},
    "quantile": Function(("x", "q", "axis", "keepdims"), 2, _quantile),
    "round": Function(("x", "digits"), 1, _round),
    "where": Function(("condition", "a", "b"), 3, _where),
    "clip": Function(("x", "low", "high"), 1, _clip),
    "shape": Function(("x",), 1, _shape),
    "size": Function(("x",), 1, _size),
    "dtype": Function(("x",), 1, _dtype),
    "stats": Function(("x",), 1, None),
    "prev": Function(("x",), 1, None),
}
"""Every function of the language; the same names are methods of tensors."""

SIGNATURES = {name: (function.parameters, function.needed) for name, function in FUNCTIONS.items()}
