"""Reductions over axes: one table of kernels, two signatures.

`axes` is an attribute until opset 12 (ReduceSum) or 17 (the others), an input afterwards.  f16, bf16 and
float8 are accumulated in f32 and rounded once; integers keep their own type and wrap around, as in NumPy and
ONNX Runtime.  An empty reduction returns the neutral element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from nncdbg.engine.ops import gradient_shape as gradients
from nncdbg.engine.ops import remarks
from nncdbg.engine.ops import valid_integers as valid
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.formula import formula_text, in_precision, type_at
from nncdbg.engine.ops.influence import REDUCED, REDUCED_TO_GREATEST, REDUCED_TO_LEAST, Infinities
from nncdbg.engine.ops.precision import is_narrow, settled, widened
from nncdbg.engine.ops.types import (
    Attributes,
    Types,
    at,
    normal_axes,
    reduced_shape,
    shape_at,
    typed,
    unknown_axes,
)

Axes: TypeAlias = "tuple[int, ...]"
Reduction: TypeAlias = Callable[[Any, Any, Axes, bool], Any]
"""`reduction(xp, x, axes, keepdims)`: returns an array of `x`'s dtype, or a wider one to cast back."""


def _accumulator(dtype: Any) -> Any:
    """Return the dtype of the sum: f32 for narrow floats, else `dtype`."""
    return np.dtype(np.float32) if is_narrow(dtype) else dtype


def _sum(xp: Any, x: Any, axes: Axes, keepdims: bool) -> Any:
    return xp.sum(x, axis=axes, keepdims=keepdims, dtype=_accumulator(x.dtype))


def _product(xp: Any, x: Any, axes: Axes, keepdims: bool) -> Any:
    return xp.prod(x, axis=axes, keepdims=keepdims, dtype=_accumulator(x.dtype))


def _mean(xp: Any, x: Any, axes: Axes, keepdims: bool) -> Any:
    total, count = _sum(xp, x, axes, keepdims), math.prod(x.shape[axis] for axis in axes)
    if x.dtype.kind not in "iu":
        return total / total.dtype.type(count)
    if count == 0:
        return total
    # Integers round towards zero.
    quotient = total // count
    return quotient + ((quotient < 0) & (quotient * count != total)).astype(x.dtype)


def _extreme(function: str, sign: int) -> Reduction:
    """Return ``max`` (sign 1) or ``min`` (-1); of no elements, the other end of the type or an infinity."""

    def neutral(dtype: Any) -> Any:
        if dtype.kind == "b":
            return sign < 0
        if dtype.kind not in "iu":
            return -sign * np.inf
        return np.iinfo(dtype).min if sign > 0 else np.iinfo(dtype).max

    def reduction(xp: Any, x: Any, axes: Axes, keepdims: bool) -> Any:
        # `initial` is passed only if needed: ml_dtypes' reductions do not support it.
        if x.size:
            return getattr(xp, function)(x, axis=axes, keepdims=keepdims)
        wide = widened(xp, x)
        return xp.full_like(xp.sum(wide, axis=axes, keepdims=keepdims), neutral(x.dtype), dtype=wide.dtype)

    return reduction


_greatest, _least = _extreme("max", 1), _extreme("min", -1)


def _l1(xp: Any, x: Any, axes: Axes, keepdims: bool) -> Any:
    return _sum(xp, xp.abs(x), axes, keepdims)


def _sum_square(xp: Any, x: Any, axes: Axes, keepdims: bool) -> Any:
    wide = widened(xp, x)
    return _sum(xp, wide * wide, axes, keepdims)


def _log_sum(xp: Any, x: Any, axes: Axes, keepdims: bool) -> Any:
    return xp.log(_sum(xp, x, axes, keepdims))


def _log_sum_exp(xp: Any, x: Any, axes: Axes, keepdims: bool) -> Any:
    """Return log(sum(exp(x))), shifted by the greatest finite element to avoid overflow."""
    wide = widened(xp, x)
    top = _greatest(xp, wide, axes, True)
    # An infinite maximum must not be subtracted from itself; NaN propagates.
    top = xp.where(xp.isinf(top), xp.zeros_like(top), top)
    result = xp.log(_sum(xp, xp.exp(wide - top), axes, True)) + top
    return result if keepdims else result.reshape(reduced_shape(x.shape, axes, False))


def _reduced(xp: Any, reduction: Reduction, x: Any, axes: Any, keepdims: int) -> Any:
    """Reduce over `axes` (None: all) to an array of `x`'s dtype."""
    over = tuple(range(x.ndim)) if axes is None else normal_axes(axes, x.ndim)
    return settled(xp, reduction(xp, x, over, bool(keepdims)), x.dtype)


def _types_by_attribute(attributes: Attributes, types: Types) -> Types:
    # Before opset 18 an empty list meant the same as no list.
    axes = attributes["axes"] or None
    return (typed(at(types, 0), reduced_shape(shape_at(types, 0), axes, bool(attributes["keepdims"]))),)


def _types_by_input(attributes: Attributes, types: Types) -> Types:
    given, keepdims = at(types, 0), bool(attributes["keepdims"])
    shape = shape_at(types, 0)
    if len(types) < 2:
        noop = attributes["noop_with_empty_axes"]
        return (given,) if noop else (typed(given, reduced_shape(shape, None, keepdims)),)
    return (typed(given, unknown_axes(shape, keepdims)),)


def _mean_formula(attributes: Attributes, types: Types) -> str:
    """The sum, divided by the number of elements that went into each: Size(x) / Size(sum)."""
    given, axes = type_at(types, 0), attributes.get("axes")
    keep, noop = attributes["keepdims"], attributes.get("noop_with_empty_axes", 0)
    over = ", %axes" if at(types, 1) is not None else f", {list(axes)}" if axes else ""
    lines = [
        f"%sum.wide = ReduceSum(%x.wide{over}, keepdims={keep}, noop_with_empty_axes={noop})",
        "%all = Size(%x)",
        "%sums = Size(%sum.wide)",
        "%count = Div(%all, %sums)",
        "%divisor = CastLike(%count, %sum.wide)",
        "%mean.wide = Div(%sum.wide, %divisor)",
    ]
    inputs = [("x", given), ("axes", at(types, 1))]
    return formula_text("ReduceMean", inputs, in_precision(given.dtype, ["x"], lines, ["mean"]), ["mean"])


def _reduced_over(shapes: Sequence[Sequence[int]], result: Sequence[int]) -> int:
    return math.prod(shapes[0]) // max(1, math.prod(result))


def _declare(name: str, reduction: Reduction, what: str, by_input: int = 18, **fields: Any) -> None:
    def kernel_by_attribute(xp: Any, x: Any, *, axes: Any, keepdims: int) -> Any:
        return _reduced(xp, reduction, x, axes or None, keepdims)

    def kernel_by_input(
        xp: Any, x: Any, axes: Any = None, *, keepdims: int, noop_with_empty_axes: int
    ) -> Any:
        if axes is not None and axes.size:
            return _reduced(xp, reduction, x, axes.tolist(), keepdims)
        # The op still applies to each element separately: no axis is reduced.
        return _reduced(xp, reduction, x, () if noop_with_empty_axes else None, keepdims)

    kernel_by_attribute.__doc__ = f"{what} over `axes` (an attribute).  ONNX {name} 1 to {by_input - 1}."
    kernel_by_input.__doc__ = f"{what} over `axes` (an input).  ONNX {name} since {by_input}."
    given = {"influence": REDUCED, "terms": _reduced_over, "host_operands": (1,), "reduces": True, **fields}
    enter = partial(op, name, **given)
    enter(since=1, infer=_types_by_attribute)(kernel_by_attribute)
    enter(since=by_input, infer=_types_by_input, integers=valid.axes())(kernel_by_input)


_EMPTY: dict[str, Any] = {"legal": "sums.of_nothing"}
_OF_EXTREMES: dict[str, Any] = {"vjp": gradients.reduced_extreme, **_EMPTY}

_declare(
    "ReduceSum", _sum, "The sum", 13, vjp=gradients.reduced_sum, cause="sums.total", remark=remarks.terms
)
_declare("ReduceMean", _mean, "The mean", formula=_mean_formula, cause="sums.mean", remark=remarks.mean)
_doc = "The greatest element, NaN if one is NaN,"
_declare("ReduceMax", _greatest, _doc, influence=REDUCED_TO_GREATEST, cause="sums.greatest", **_OF_EXTREMES)
_doc = "The least element, NaN if one is NaN,"
_declare("ReduceMin", _least, _doc, influence=REDUCED_TO_LEAST, cause="sums.least", **_OF_EXTREMES)
_declare("ReduceProd", _product, "The product", vjp=gradients.reduced_product, cause="sums.reduced_product")
_declare("ReduceL1", _l1, "The sum of absolute values", cause="sums.total_of_sizes")
_declare(
    "ReduceL2",
    lambda xp, x, axes, keepdims: xp.sqrt(_sum_square(xp, x, axes, keepdims)),
    "The root of the sum of squares",
    vjp=gradients.reduced_norm,
    cause="sums.total_of_squares",
    remark=remarks.norm,
)
_doc = "The logarithm of the sum"
_declare("ReduceLogSum", _log_sum, _doc, cause="sums.logarithm_of_sum", remark=remarks.logarithm, **_EMPTY)
_declare(
    "ReduceLogSumExp",
    _log_sum_exp,
    "The logarithm of the sum of exponentials",
    vjp=gradients.reduced_log_sum_exp,
    influence=REDUCED.taking(Infinities.ABSORBED),
    cause="sums.logarithm_of_exponentials",
    remark=remarks.log_sum_exp,
    **_EMPTY,
)
_declare(
    "ReduceSumSquare", _sum_square, "The sum of squares", cause="sums.total_of_squares", remark=remarks.powers
)
