"""QuantizeLinear and DequantizeLinear: per tensor, per axis and per block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nncdbg.engine.dtypes import INTEGERS, NUMPY, integer_range, name_of
from nncdbg.engine.errors import RunError
from nncdbg.engine.ops import contracts, remarks
from nncdbg.engine.ops.cast import cast_to
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.gradient import nothing
from nncdbg.engine.ops.gradient_indices import dequantized
from nncdbg.engine.ops.influence import Application, Influence, Marked
from nncdbg.engine.ops.integer_faults import SCALE, IntegerFault, bad_scales
from nncdbg.engine.ops.precision import widened
from nncdbg.engine.ops.types import Attributes, Types, at, element_type, normal_axis, shape_at
from nncdbg.engine.text.counting import elements
from nncdbg.engine.text.rounding import CLIPPED, lost
from nncdbg.ir.records import TensorType


def _spread(xp: Any, value: Any, shape: tuple[int, ...], axis: int, block_size: int) -> Any:
    """Reshape scales or zero points so that they broadcast to `shape`."""
    if value.size == 1:
        return value.reshape(())
    number = normal_axis(axis, len(shape))
    if block_size:
        repeated = xp.repeat(value, block_size, axis=number)
        # The last block may be shorter than the others.
        cut = repeated[(slice(None),) * number + (slice(shape[number]),)]
        if cut.shape != shape:
            raise RunError(
                f"a scale of shape {list(value.shape)} in blocks of {block_size}"
                f" does not cover shape {list(shape)}"
            )
        return cut
    if value.ndim != 1 or value.size != shape[number]:
        raise RunError(
            f"a scale of shape {list(value.shape)} does not match axis {number} of shape {list(shape)}"
        )
    return value.reshape((-1,) + (1,) * (len(shape) - number - 1))


def _quantize_types(attributes: Attributes, types: Types) -> Types:
    zero, stated = at(types, 2), attributes.get("output_dtype")
    if zero is not None:
        return (TensorType(zero.dtype, shape_at(types, 0)),)
    if stated:
        return (TensorType(element_type(stated), shape_at(types, 0)),)
    # An operand of unknown type is indistinguishable here from an omitted one.
    return (TensorType("u8", shape_at(types, 0)) if len(types) < 3 else None,)


def _bad_scale(attributes: Attributes, inputs: Sequence[Any]) -> IntegerFault | None:
    """Return the elements that a scale of zero or NaN quantizes."""
    x, bad = inputs[0], bad_scales(inputs[1])
    if bad is None or not x.size:
        return None
    spread = _spread(np, bad, x.shape, attributes["axis"], attributes["block_size"])
    return IntegerFault(SCALE, 1, bad, spread)


def _spread_influence(application: Application) -> Sequence[Marked]:
    """Mark values element by element; a scale or zero point marks all elements that it scales."""
    shape = np.shape(application.operands[0])
    axis, size = application.attributes.get("axis", 1), application.attributes.get("block_size", 0)
    found = np.zeros(shape, bool)
    for index, marks in enumerate(application.marked):
        if marks is not None and index == 0:
            found |= marks
        elif marks is not None:
            found |= _spread(np, marks, shape, axis, size)
    return [found]


_ROW = Influence(
    "element by element; for a scale or zero point, all results that it scales", _spread_influence
)


def _clipped(statement: remarks.Evaluated) -> str:
    """Return how many elements QuantizeLinear clips, except at 0, as a Relu clips these."""
    x, scale, *rest = statement.inputs
    result, attributes = statement.result, statement.attributes
    name = name_of(result.dtype)
    if name not in INTEGERS or not result.size:
        return ""
    low, high = integer_range(name)
    place = attributes.get("axis", 1), attributes.get("block_size", 0)
    zeros = rest[0].astype(np.int64) if rest and rest[0] is not None else np.zeros(1, np.int64)
    zero = _spread(np, zeros, x.shape, *place)
    values = result.astype(np.int64)
    limits = (values == high) & (high != zero) | (values == low) & (low != zero)
    axis = None if scale.size == 1 else normal_axis(place[0], x.ndim)
    others = None if axis is None else tuple(each for each in range(x.ndim) if each != axis)
    if float(np.max(limits.mean(axis=others))) < CLIPPED:
        return ""
    with np.errstate(all="ignore"):
        exact = x.astype(np.float64) / _spread(np, scale.astype(np.float64), x.shape, *place) + zero
    # Half a step beyond the limit still rounds to it.
    wrong = (exact > high + 0.5) & (high != zero) | (exact < low - 0.5) & (low != zero)
    shares = np.atleast_1d(wrong.mean(axis=others))
    channels = np.flatnonzero(shares >= CLIPPED)
    if not channels.size:
        return ""
    count = elements(int(wrong.sum()), wrong.size, "its operand")
    range_ = f"outside of the range of {name} and clipped"
    if axis is not None:
        worst = int(shares.argmax())
        range_ += (
            f", in {len(channels)} of {len(shares)} channels of axis {axis} {CLIPPED:.0%} or more: "
            f"{shares[worst]:.0%} in channel {worst}"
        )
    return f"{count} {range_}; choose a larger scale, or calibrate again"


@op(
    "QuantizeLinear",
    since=10,
    infer=_quantize_types,
    vjp=nothing,
    influence=_ROW,
    integer_fault=_bad_scale,
    contract=contracts.positive_scales(1),
    remark=_clipped,
    saturates=True,
    cause="casts.quantize",
)
def quantize_linear(
    xp: Any,
    x: Any,
    scale: Any,
    zero_point: Any = None,
    *,
    axis: int = 1,
    saturate: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
) -> Any:
    """round(x / scale) + zero_point, ties to even, saturated to the type of `zero_point` (u8).

    The quotient is rounded to `precision`, else to the type of `scale`.  ONNX QuantizeLinear since 10.
    """
    target = NUMPY[element_type(output_dtype)] if output_dtype else np.dtype(np.uint8)
    target = zero_point.dtype if zero_point is not None else target
    kept = NUMPY[element_type(precision)] if precision else scale.dtype
    divisor = _spread(xp, scale, x.shape, axis, block_size)
    wide = widened(xp, x if x.dtype.kind != "i" else x.astype(np.float64))
    quotient = widened(xp, (wide / widened(xp, divisor)).astype(kept))
    name = name_of(target)
    if name in INTEGERS:
        quotient = xp.rint(quotient)
    if zero_point is not None:
        zero = _spread(xp, zero_point, x.shape, axis, block_size)
        quotient = quotient + zero.astype(quotient.dtype)
    if name not in INTEGERS:
        return cast_to(xp, xp.asarray(quotient), target, saturate)
    return xp.asarray(xp.clip(quotient, *integer_range(name))).astype(target)


def _dequantize_types(attributes: Attributes, types: Types) -> Types:
    scale, stated = at(types, 1), attributes.get("output_dtype")
    if stated:
        return (TensorType(element_type(stated), shape_at(types, 0)),)
    return (None if scale is None else TensorType(scale.dtype, shape_at(types, 0)),)


def _vanished(statement: remarks.Evaluated) -> str:
    """Return how many results of DequantizeLinear are 0 because scale * (x - zero) underflows."""
    result, (x, scale, *rest) = statement.result, statement.inputs
    if not result.size or result.all():
        return ""
    place = statement.attributes.get("axis", 1), statement.attributes.get("block_size", 0)
    zero = _spread(np, rest[0], x.shape, *place) if rest and rest[0] is not None else np.zeros((), x.dtype)
    shifted = x.astype(np.float64) - zero.astype(np.float64)
    exact = shifted * _spread(np, scale.astype(np.float64), x.shape, *place)
    return lost(exact, result, "the result", "use a larger scale") if exact[result == 0].any() else ""


@op(
    "DequantizeLinear",
    since=10,
    infer=_dequantize_types,
    vjp=dequantized,
    influence=_ROW,
    cause="casts.dequantize",
    contract=contracts.quantized_zero,
    remark=_vanished,
)
def dequantize_linear(
    xp: Any,
    x: Any,
    scale: Any,
    zero_point: Any = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Any:
    """(x - zero_point) * scale, computed in f32, in the type of `scale`.  ONNX DequantizeLinear since 10."""
    shifted = x.astype(np.float32)
    if zero_point is not None:
        zero = _spread(xp, zero_point, x.shape, axis, block_size)
        shifted = shifted - zero.astype(np.float32)
    result = shifted * widened(xp, _spread(xp, scale, x.shape, axis, block_size))
    target = NUMPY[element_type(output_dtype)] if output_dtype else scale.dtype
    return xp.asarray(result, dtype=target)


@op(
    "DynamicQuantizeLinear",
    since=11,
    infer=lambda attributes, types: (
        TensorType("u8", shape_at(types, 0)),
        TensorType("f32", ()),
        TensorType("u8", ()),
    ),
    saturates=True,
    cause="casts.dynamic",
)
def dynamic_quantize_linear(xp: Any, x: Any) -> Any:
    """`x` as u8, with the scale and zero point that cover its range and 0; the scale of zeros is 1."""
    covered = xp.concatenate([x.ravel(), xp.zeros(1, x.dtype)])
    least, most = covered.min(), covered.max()
    scale = xp.where(most == least, x.dtype.type(1), (most - least) / x.dtype.type(255)).astype(x.dtype)
    zero = xp.clip(xp.rint(-least / scale), 0, 255)
    y = xp.clip(xp.rint(x / scale) + zero, 0, 255)
    return y.astype(xp.uint8), xp.asarray(scale), xp.asarray(zero).astype(xp.uint8)
