"""Element type conversions: `Cast`, `CastLike`, `BitCast`, and `Identity`, which changes nothing.

Saturation, float8, E8M0 rounding and strings follow the ONNX Cast-25 document.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from nncdbg.dtypes import FLOATS, INTEGERS, NUMPY, integer_range, name_of
from nncdbg.engine.ops import contracts, remarks
from nncdbg.engine.ops import gradient_shape as gradients
from nncdbg.engine.ops.contracts import ZERO_SCALE, IntegerFault, bad_scales, cast_as_other, cast_by_attribute
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.gradient import nothing
from nncdbg.engine.ops.gradient_shape import dequantized
from nncdbg.engine.ops.influence import (
    MOVED,
    POINTWISE,
    Application,
    Content,
    Infinities,
    Influence,
    Marked,
    of_first,
)
from nncdbg.engine.ops.precision import widened
from nncdbg.engine.ops.types import Attributes, Types, at, element_type, normal_axis, same_as, shape_at
from nncdbg.errors import GraphError, RunError
from nncdbg.ir.records import TensorType
from nncdbg.text.counting import elements
from nncdbg.text.rounding import CLIPPED, lost

_FLOAT8 = frozenset(NUMPY[name] for name in ("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz"))
_SCALE = NUMPY["f8e8m0fnu"]
_HALF_BYTES = {"i4": 4, "u4": 4, "f4e2m1fn": 4, "i2": 2, "u2": 2}
"""Bit widths of the types that NumPy stores in a whole byte."""


@op("Identity", since=1, infer=same_as(0), vjp=gradients.identity, influence=MOVED)
def identity(xp: Any, x: Any) -> Any:
    """The input itself.  ONNX Identity since 1."""
    return x


def _to_scale(xp: Any, x: Any, saturate: bool, round_mode: str) -> Any:
    """Convert to E8M0: an exponent only, from 2**-127 (code 0) to 2**127 (code 254); code 255 is NaN."""
    mantissa, exponent = xp.frexp(x.astype(np.float64))
    # frexp returns a mantissa in [0.5, 1): the number is at least 2**(exponent - 1).
    above = {"down": mantissa >= 1, "up": mantissa > 0.5, "nearest": mantissa >= 0.75}[round_mode]
    code = exponent - 1 + above + 127
    if saturate:
        code = xp.where(x == 0, 0, xp.where(xp.isinf(x), 254, xp.clip(code, 0, 254)))
    else:
        code = xp.where((x == 0) | xp.isinf(x) | (code < 0) | (code > 254), 255, code)
    code = xp.where(xp.isnan(x), 255, code)
    return xp.asarray(code).astype(np.uint8).view(_SCALE)


def _number(text: Any, integral: bool) -> Any:
    written = text.decode() if isinstance(text, bytes) else str(text)
    try:
        return int(written) if integral else float(written)
    except ValueError:
        pass
    try:
        return float(written)
    except ValueError:
        message = f"the string {written!r} is not a number"
        raise RunError(message, hint="use a form such as 3.14, 1e-5, INF or NaN") from None


def _from_strings(x: Any, dtype: Any) -> Any:
    integral = name_of(dtype) in INTEGERS
    numbers = [_number(text, integral) for text in x.reshape(-1)]
    if integral:
        for number, text in zip(numbers, x.reshape(-1), strict=True):
            if not math.isfinite(number):
                raise RunError(f"the string {str(text)!r} is not an integer", hint="cast to a float type")
        # An integer out of range wraps around, as in onnxruntime.
        whole = np.array([int(number) % 2**64 for number in numbers], np.uint64)
        return whole.view(np.int64).astype(dtype).reshape(x.shape)
    return np.array(numbers, np.float64).astype(dtype).reshape(x.shape)


def _float_text(number: Any) -> str:
    text = f"{float(number):.8g}"
    return {"nan": "NaN", "inf": "INF", "-inf": "-INF"}.get(text, text)


def cast_to(xp: Any, x: Any, dtype: Any, saturate: int = 1, round_mode: str = "up") -> Any:
    """Convert `x` to the NumPy `dtype` by the rules of ONNX Cast; return `x` itself if it has that type."""
    if x.dtype == dtype:
        return x
    if dtype.kind == "O":
        name = name_of(x.dtype)
        spell = (
            _float_text if name in FLOATS else str if x.dtype.kind == "c" else lambda number: str(int(number))
        )
        texts = np.empty(x.size, object)
        texts[:] = [spell(number) for number in x.reshape(-1)]
        return texts.reshape(x.shape)
    if x.dtype.kind in "OSUT":
        return _from_strings(x, dtype)
    if dtype == _SCALE:
        return _to_scale(xp, x, bool(saturate), round_mode)
    if dtype in _FLOAT8 and saturate:
        # Clamp `x` to the finite range of `dtype`; NaN is kept.
        limits = ml_dtypes.finfo(dtype)
        wide = x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)
        return xp.asarray(xp.clip(wide, float(limits.min), float(limits.max))).astype(dtype)
    return x.astype(dtype)


def _cast_types(attributes: Attributes, types: Types) -> Types:
    given = at(types, 0)
    return (TensorType(element_type(attributes["to"]), None if given is None else given.shape),)


@op(
    "Cast",
    since=6,
    infer=_cast_types,
    vjp=gradients.cast,
    influence=POINTWISE.taking(Infinities.KEPT),
    integer_fault=cast_by_attribute,
    content=Content.CAST,
    saturates=True,
    cause="pointwise.cast",
    remark=remarks.narrowed,
    zeros="pointwise.underflow",
)
def cast(xp: Any, x: Any, *, to: int, saturate: int = 1, round_mode: str = "up") -> Any:
    """`x` as the ONNX element type `to`.  ONNX Cast since 6."""
    return cast_to(xp, x, NUMPY[element_type(to)], saturate, round_mode)


def _cast_like_types(attributes: Attributes, types: Types) -> Types:
    given, target = at(types, 0), at(types, 1)
    if target is None:
        return (None,)
    return (TensorType(target.dtype, None if given is None else given.shape),)


@op(
    "CastLike",
    since=15,
    infer=_cast_like_types,
    vjp=gradients.cast_as_other,
    influence=of_first(POINTWISE).taking(Infinities.KEPT),
    integer_fault=cast_as_other,
    content=Content.CAST,
    cause="pointwise.cast",
    remark=remarks.narrowed,
)
def cast_like(xp: Any, x: Any, target: Any, *, saturate: int = 1, round_mode: str = "up") -> Any:
    """`x` as the element type of `target`.  ONNX CastLike since 15."""
    return cast_to(xp, x, target.dtype, saturate, round_mode)


def _bits(name: str) -> int:
    return _HALF_BYTES.get(name, NUMPY[name].itemsize * 8)


def _check_width(source: str, target: str) -> None:
    if "str" in (source, target) or _bits(source) != _bits(target):
        raise GraphError(f"{source} and {target} have different bit widths")


def _bit_cast_types(attributes: Attributes, types: Types) -> Types:
    given, target = at(types, 0), element_type(attributes["to"])
    if given is None:
        return (TensorType(target),)
    _check_width(given.dtype, target)
    return (TensorType(target, given.shape),)


@op(
    "BitCast",
    since=26,
    infer=_bit_cast_types,
    influence=POINTWISE,
    cause="pointwise.bit_cast",
    no_gradient="it reinterprets the bits of floats",
)
def bit_cast(xp: Any, x: Any, *, to: int) -> Any:
    """The bits of `x` read as the type `to` of the same width.  ONNX BitCast since 26."""
    target = element_type(to)
    _check_width(name_of(x.dtype), target)
    # A view needs contiguous memory only if the item size changes; here it never does.
    return x.view(NUMPY[target])


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
    return IntegerFault(ZERO_SCALE, 1, bad, spread)


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
    cause="pointwise.quantize",
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
    cause="pointwise.dequantize",
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
    cause="pointwise.dynamic",
)
def dynamic_quantize_linear(xp: Any, x: Any) -> Any:
    """`x` as u8, with the scale and zero point that cover its range and 0; the scale of zeros is 1."""
    covered = xp.concatenate([x.ravel(), xp.zeros(1, x.dtype)])
    least, most = covered.min(), covered.max()
    scale = xp.where(most == least, x.dtype.type(1), (most - least) / x.dtype.type(255)).astype(x.dtype)
    zero = xp.clip(xp.rint(-least / scale), 0, 255)
    y = xp.clip(xp.rint(x / scale) + zero, 0, 255)
    return y.astype(xp.uint8), xp.asarray(scale), xp.asarray(zero).astype(xp.uint8)
