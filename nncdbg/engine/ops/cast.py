"""Element type conversions: `Cast`, `CastLike`, `BitCast`, and `Identity`, which changes nothing.

Saturation, float8, E8M0 rounding and strings follow the ONNX Cast-25 document.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from nncdbg.engine.dtypes import FLOATS, INTEGERS, NUMPY, name_of
from nncdbg.engine.errors import GraphError, RunError
from nncdbg.engine.ops import gradient_shape as gradients
from nncdbg.engine.ops import remarks
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.influence import MOVED, POINTWISE, Content, Infinities, of_first
from nncdbg.engine.ops.integer_faults import cast_as_other, cast_by_attribute
from nncdbg.engine.ops.types import Attributes, Types, at, element_type, same_as
from nncdbg.ir.records import TensorType

_FLOAT8 = frozenset(NUMPY[name] for name in ("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz"))
_SCALE = NUMPY["f8e8m0fnu"]
_HALF_BYTES = {"i4": 4, "u4": 4, "f4e2m1fn": 4, "i2": 2, "u2": 2}
"""Bit widths of the types that NumPy stores in a whole byte."""


@op("Identity", since=1, infer=same_as(0), vjp=gradients.identity, influence=MOVED)
def identity(xp: Any, x: Any) -> Any:
    """The input itself.  ONNX Identity since 1."""
    return x


def _saturated(xp: Any, x: Any, dtype: Any) -> Any:
    """Clamp `x` to the finite range of `dtype`; NaN is kept."""
    limits = ml_dtypes.finfo(dtype)
    wide = x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)
    return xp.asarray(xp.clip(wide, float(limits.min), float(limits.max))).astype(dtype)


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


def _to_strings(x: Any) -> Any:
    """Return numbers as text as onnxruntime writes them: floats with 8 digits, bools as 1 and 0."""
    name = name_of(x.dtype)
    spell = _float_text if name in FLOATS else str if x.dtype.kind == "c" else lambda number: str(int(number))
    texts = np.empty(x.size, object)
    texts[:] = [spell(number) for number in x.reshape(-1)]
    return texts.reshape(x.shape)


def _float_text(number: Any) -> str:
    text = f"{float(number):.8g}"
    return {"nan": "NaN", "inf": "INF", "-inf": "-INF"}.get(text, text)


def cast_to(xp: Any, x: Any, dtype: Any, saturate: int = 1, round_mode: str = "up") -> Any:
    """Convert `x` to the NumPy `dtype` by the rules of ONNX Cast; return `x` itself if it has that type."""
    if x.dtype == dtype:
        return x
    if dtype.kind == "O":
        return _to_strings(x)
    if x.dtype.kind in "OSUT":
        return _from_strings(x, dtype)
    if dtype == _SCALE:
        return _to_scale(xp, x, bool(saturate), round_mode)
    if dtype in _FLOAT8 and saturate:
        return _saturated(xp, x, dtype)
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
    cause="casts.cast",
    remark=remarks.narrowed,
    zeros="zeros.underflow",
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
    cause="casts.cast",
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
    cause="casts.bit_cast",
    no_gradient="it reinterprets the bits of floats",
)
def bit_cast(xp: Any, x: Any, *, to: int) -> Any:
    """The bits of `x` read as the type `to` of the same width.  ONNX BitCast since 26."""
    target = element_type(to)
    _check_width(name_of(x.dtype), target)
    # A view needs contiguous memory only if the item size changes; here it never does.
    return x.view(NUMPY[target])
