"""Elementwise arithmetic and logic: tables where NumPy's ufunc *is* ONNX's op, kernels for the rest.

Differences from NumPy: integers divide towards zero, `Pow` keeps the type of its base, `Min`, `Max`, `Sum`
and `Mean` take any number of inputs.  Arithmetic propagates NaN; a comparison with NaN is false, as in IEEE
754.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from nncdbg.engine.ops import contracts, remarks
from nncdbg.engine.ops import gradient as gradients
from nncdbg.engine.ops import valid_integers as valid
from nncdbg.engine.ops.contracts import divides_by_zero
from nncdbg.engine.ops.declaration import Formula, Op, declare, op, other_version
from nncdbg.engine.ops.formula import formula_text, type_at
from nncdbg.engine.ops.gradient import nothing
from nncdbg.engine.ops.influence import (
    AND,
    CHECK,
    CLIPPED,
    EQUAL,
    MAXIMUM,
    MINIMUM,
    MULTIPLIED,
    OR,
    POINTWISE,
    WHERE,
    Infinities,
)
from nncdbg.engine.ops.precision import is_narrow, settled
from nncdbg.engine.ops.types import (
    Attributes,
    Infer,
    Types,
    at,
    broadcast,
    broadcast_shapes,
    fixed,
    same_as,
    shape_at,
    typed,
)


def elementwise(name: str, ufunc: str, since: int, infer: Infer, doc: str, **fields: Any) -> None:
    """Declare `name` as the function `ufunc` of the array namespace."""
    given = {"influence": POINTWISE, "accepts_out": True, **fields}
    declare(Op(name, kernel=None, since=since, infer=infer, ufunc=ufunc, doc=doc, **given))


def _unary(name: str, ufunc: str, since: int, **fields: Any) -> None:
    elementwise(name, ufunc, since, same_as(0), f"{name}, element by element.", **fields)


# Attributes of opset 1 (`consumed_inputs`) do not change the result, so `since` is 1.
_unary("Neg", "negative", 1, vjp=gradients.negative, influence=POINTWISE.taking(Infinities.KEPT))
_unary("Abs", "absolute", 1, vjp=gradients.absolute)
_unary(
    "Exp",
    "exp",
    1,
    vjp=gradients.exponential,
    influence=POINTWISE.taking(Infinities.EXPONENTIAL),
    cause="pointwise.exponential",
    zeros="pointwise.exponential_underflow",
)
_unary(
    "Log",
    "log",
    1,
    vjp=gradients.logarithm,
    exact_infinity=True,
    cause="pointwise.logarithm",
    legal="sums.logarithm_of_empty_sum",
)
_unary("Sqrt", "sqrt", 1, vjp=gradients.root, cause="pointwise.root")
_unary("Tanh", "tanh", 1, vjp=gradients.tanh, bounds=(-1.0, 1.0))
_unary("Floor", "floor", 1, vjp=nothing, jumps=True)
_unary("Ceil", "ceil", 1, vjp=nothing, jumps=True)
_unary(
    "Reciprocal", "reciprocal", 1, vjp=gradients.reciprocal, exact_infinity=True, cause="pointwise.reciprocal"
)
_unary("Sin", "sin", 7, vjp=gradients.sine, cause="pointwise.of_angle")
_unary("Cos", "cos", 7, vjp=gradients.cosine, cause="pointwise.of_angle")
_unary("Tan", "tan", 7, vjp=gradients.tangent, cause="pointwise.tangent")
_unary("Asin", "arcsin", 7, vjp=gradients.arcsine, cause="pointwise.arcsine")
_unary("Acos", "arccos", 7, vjp=gradients.arccosine, cause="pointwise.arcsine")
_unary("Atan", "arctan", 7, vjp=gradients.arctangent)
_unary("Sinh", "sinh", 9, vjp=gradients.hyperbolic_sine, cause="pointwise.exponential")
_unary("Cosh", "cosh", 9, vjp=gradients.hyperbolic_cosine, cause="pointwise.exponential")
_unary("Asinh", "arcsinh", 9, vjp=gradients.area_sine)
_unary("Acosh", "arccosh", 9, vjp=gradients.area_cosine, cause="pointwise.area_cosine")
_unary("Atanh", "arctanh", 9, vjp=gradients.area_tangent, cause="pointwise.area_tangent")
_unary("Sign", "sign", 9, vjp=nothing, jumps=True)
_unary("Round", "rint", 11, vjp=nothing, jumps=True)


def _binary(name: str, ufunc: str, **fields: Any) -> None:
    elementwise(name, ufunc, 7, broadcast(), f"{name} with broadcasting.", arithmetic=True, **fields)


SUMMED = POINTWISE.taking(Infinities.MIXED)
_binary("Add", "add", vjp=gradients.add, influence=SUMMED, commutative=True, cause="pointwise.addition")
_binary("Sub", "subtract", vjp=gradients.subtract, influence=SUMMED, cause="pointwise.addition")
_binary(
    "Mul",
    "multiply",
    vjp=gradients.multiply,
    influence=MULTIPLIED,
    commutative=True,
    cause="pointwise.multiplication",
    zeros="pointwise.underflow",
)


def _integral(x: Any) -> bool:
    """Return True for NumPy's integers; ml_dtypes' small integers and floats have kind "V"."""
    return x.dtype.kind in "iu"


def _quotient(xp: Any, a: Any, b: Any, out: Any = None) -> Any:
    """Return `a / b` of integers, rounded towards zero; 0 for a zero divisor, as in the array library."""
    result = xp.floor_divide(a, b) if out is None else xp.floor_divide(a, b, out)
    result = xp.asarray(result)
    if result.dtype.kind == "i":
        # The floor is one too low where the quotient is negative and inexact.
        result += ((result < 0) & (result * b != a)).astype(result.dtype)
    return result


@op(
    "Div",
    since=7,
    infer=broadcast(),
    accepts_out=True,
    vjp=gradients.divide,
    integers=valid.divisor,
    integer_fault=divides_by_zero,
    influence=POINTWISE.taking(Infinities.SCALED),
    arithmetic=True,
    exact_infinity=lambda operands: bool((np.asarray(operands[1]) == 0).any()),
    cause="pointwise.division",
    zeros="pointwise.quotient",
)
def divide(xp: Any, a: Any, b: Any, *, out: Any = None) -> Any:
    """`a / b` with broadcasting; integers round towards zero.  ONNX Div since 7."""
    if _integral(a):
        return _quotient(xp, a, b, out)
    return xp.asarray(xp.divide(a, b, out))


@op(
    "Mod",
    since=10,
    infer=broadcast(),
    accepts_out=True,
    integers=valid.divisor,
    integer_fault=divides_by_zero,
    vjp=gradients.remainder,
    influence=POINTWISE.roughly,
    jumps=True,
    cause="pointwise.remainder",
)
def modulo(xp: Any, a: Any, b: Any, *, fmod: int, out: Any = None) -> Any:
    """The remainder with the sign of `b`, or with `fmod` that of `a`.  ONNX Mod since 10."""
    if not fmod:
        return xp.asarray(xp.remainder(a, b, out))
    if _integral(a):
        return xp.asarray(xp.subtract(a, _quotient(xp, a, b) * b, out))
    return xp.asarray(xp.fmod(a, b, out))


def _power_of_integers(xp: Any, x: Any, y: Any) -> Any:
    """Compute integer powers; a negative exponent gives the truncated quotient: 1, -1 or 0."""
    result = xp.power(x, xp.maximum(y, 0).astype(x.dtype))
    if y.dtype.kind == "u":
        return result
    inverse = xp.where(x == 1, 1, xp.where(x == -1, 1 - 2 * (y & 1), 0))
    return xp.where(y < 0, inverse, result)


@op(
    "Pow",
    since=7,
    infer=broadcast(like=0),
    accepts_out=True,
    vjp=gradients.power,
    integers=valid.between({1: valid.Integers(0, valid.FEW)}),
    contract=contracts.integer_power,
    influence=POINTWISE.roughly,
    arithmetic=True,
    cause="pointwise.power",
    zeros="pointwise.underflow",
)
def power(xp: Any, x: Any, y: Any, *, out: Any = None) -> Any:
    """`x ** y` in the type of `x`; the two may differ in type.  ONNX Pow since 7."""
    if _integral(x) and _integral(y):
        result = _power_of_integers(xp, x, y)
    elif xp is np and y.ndim == 0 and x.dtype.kind == "f" and y in (1, 3):
        # powf costs a hundred times a product; the tanh form of GELU uses exponent 3.
        result = xp.multiply(x, x, out) if y == 3 else x
        result = xp.multiply(result, x, out) if y == 3 else result
    else:
        base = x.dtype
        if y.dtype != base:  # NumPy's common type, or f32 for narrow floats without one.
            base = np.result_type(*(np.dtype(np.float32) if is_narrow(d) else d for d in (x.dtype, y.dtype)))
        same = base == x.dtype
        result = xp.power(x.astype(base, copy=False), y.astype(base, copy=False), out if same else None)
    return settled(xp, result, x.dtype, out)


def _n_ary(xp: Any, function: Any, arrays: tuple[Any, ...], out: Any) -> Any:
    """Fold `arrays` with the binary `function`; a single array is returned unchanged."""
    if len(arrays) == 1:
        return settled(xp, arrays[0], arrays[0].dtype, out)
    if out is None:
        return xp.asarray(reduce(function, arrays))
    # Only the first partial result may be smaller than `out`, so it is broadcast into it.
    result = function(arrays[0], arrays[1], out=out)
    for array in arrays[2:]:
        result = function(result, array, out=out)
    return result


def _folded(name: str, step: str, mean: bool = False) -> Formula:
    """Return one statement of the binary op `step` per input after the first."""

    def formula(attributes: Attributes, types: Types) -> str:
        inputs = [(f"x{i}", type_at(types, i)) for i in range(len(types))]
        lines, last = [], "x0"
        for i in range(1, len(inputs)):
            lines.append(f"%y{i} = {step}(%{last}, %x{i})")
            last = f"y{i}"
        if mean:
            lines.append(f"%count = CastLike({len(inputs)}, %{last})")
            lines.append(f"%mean = Div(%{last}, %count)")
            last = "mean"
        elif not lines:
            lines, last = ["%y = Identity(%x0)"], "y"
        return formula_text(name, inputs, lines, [last])

    return formula


def _declare_n_ary(name: str, ufunc: str, what: str, mean: bool = False, **facts: Any) -> None:
    """Declare the fold of any number of inputs with the binary function `ufunc`."""

    def kernel(xp: Any, *arrays: Any, out: Any = None, consumed_inputs: Any = None) -> Any:
        result = _n_ary(xp, getattr(xp, ufunc), arrays, out)
        return (
            xp.divide(result, result.dtype.type(len(arrays)), result) if mean and len(arrays) > 1 else result
        )

    kernel.__doc__ = f"The {what}.  ONNX {name} since 1."
    facts |= {"infer": broadcast(), "accepts_out": True, "commutative": True, "arithmetic": True}
    op(name, since=1, **facts)(kernel)


_EXTREME: dict[str, Any] = {"vjp": gradients.extreme, "limits": (0, 1)}
_ADDED: dict[str, Any] = {"cause": "pointwise.addition"}
_what = "greatest of any number of inputs, NaN if one is NaN"
_declare_n_ary("Max", "maximum", _what, influence=MAXIMUM, **_EXTREME)
_what = "least of any number of inputs, NaN if one is NaN"
_declare_n_ary("Min", "minimum", _what, influence=MINIMUM, **_EXTREME)
_fold, _what = _folded("Sum", "Add"), "sum of any number of inputs"
_declare_n_ary("Sum", "add", _what, formula=_fold, vjp=gradients.add, influence=SUMMED, **_ADDED)
_fold, _what = _folded("Mean", "Add", mean=True), "mean of any number of inputs"
_declare_n_ary("Mean", "add", _what, mean=True, formula=_fold, influence=POINTWISE, **_ADDED)


def _clip(xp: Any, x: Any, low: Any, high: Any, out: Any) -> Any:
    """`min(max(x, low), high)`: as in ONNX, `high` wins over a greater `low`."""
    if low is not None and high is not None and x.dtype.kind in "fiu":
        return xp.asarray(xp.clip(x, low, high, out=out))
    result = x
    if low is not None:
        result = xp.maximum(result, low, out=out)
    if high is not None:
        result = xp.minimum(result, high, out=out)
    return settled(xp, result, x.dtype, out)


@op(
    "Clip",
    since=1,
    infer=same_as(0),
    accepts_out=True,
    vjp=gradients.clip,
    influence=CLIPPED,
    saturates=True,
    rectifies=True,
    zeros="pointwise.no_positive_input",
    remark=remarks.crossed,
)
def clip_by_attributes(
    xp: Any, x: Any, *, min: float | None, max: float | None, out: Any = None, consumed_inputs: Any = None
) -> Any:
    """`x` clamped to [min, max]; NaN is kept.  ONNX Clip 1 to 6."""
    low, high = (None if bound is None else x.dtype.type(bound) for bound in (min, max))
    return _clip(xp, x, low, high, out)


@other_version("Clip", 11, limits=(1, 2))
def clip(xp: Any, x: Any, low: Any = None, high: Any = None, *, out: Any = None) -> Any:
    """`x` clamped to [low, high], either of which may be absent; NaN is kept.  ONNX Clip since 11."""
    # ONNX requires scalars; a bound of shape [1], which exporters write, must not raise the rank.
    low, high = (None if bound is None else bound.reshape(()) for bound in (low, high))
    return _clip(xp, x, low, high, out)


def _where_types(attributes: Attributes, types: Types) -> Types:
    shape = broadcast_shapes(shape_at(types, i) for i in range(3))
    return (typed(at(types, 1) or at(types, 2), shape),)


@op(
    "Where",
    since=9,
    infer=_where_types,
    accepts_out=True,
    vjp=gradients.where,
    influence=WHERE,
    sources=(1, 2),
)
def where(xp: Any, condition: Any, x: Any, y: Any, *, out: Any = None) -> Any:
    """`x` where `condition` holds, else `y`; all three broadcast.  ONNX Where since 9."""
    if xp is not np or x.dtype.kind == "O" or x.dtype.itemsize > 8:
        return settled(xp, xp.where(condition, x, y), x.dtype, out)
    if out is None:
        out = np.empty(np.broadcast_shapes(condition.shape, x.shape, y.shape), x.dtype)
    # For a tensor without axes NumPy's functions return a scalar, which is not an array.
    return select_bits(np.asarray(condition), np.asarray(x), np.asarray(y), out)


def select_bits(condition: Any, x: Any, y: Any, out: Any) -> Any:
    """`np.where` by bit masks: three times as fast if `condition` has no predictable pattern."""
    bits = np.dtype(f"i{x.dtype.itemsize}")
    mask = condition.astype(bits, order="C")
    np.negative(mask, mask)
    chosen, other, target = x.view(bits), y.view(bits), out.view(bits)
    np.bitwise_xor(chosen, other, target)
    np.bitwise_and(target, mask, target)
    np.bitwise_xor(target, other, target)
    return out


_COMPARED = POINTWISE.roughly.taking(Infinities.ABSORBED)

for _name, _ufunc, _since, _row, _commutative in (
    ("And", "logical_and", 7, AND, True), ("Or", "logical_or", 7, OR, True),
    ("Xor", "logical_xor", 7, POINTWISE, True), ("Equal", "equal", 7, EQUAL, True),
    ("Less", "less", 7, _COMPARED, False), ("Greater", "greater", 7, _COMPARED, False),
    ("LessOrEqual", "less_equal", 12, _COMPARED, False),
    ("GreaterOrEqual", "greater_equal", 12, _COMPARED, False),
):  # fmt: skip
    _doc = f"{_name} with broadcasting, to bool."
    elementwise(_name, _ufunc, _since, broadcast("bool"), _doc, influence=_row, commutative=_commutative)

for _name, _ufunc in (
    ("BitwiseAnd", "bitwise_and"),
    ("BitwiseOr", "bitwise_or"),
    ("BitwiseXor", "bitwise_xor"),
):
    _doc = f"{_name} of integers with broadcasting."
    elementwise(_name, _ufunc, 18, broadcast(), _doc, commutative=True)

elementwise("Not", "logical_not", 1, same_as(0), "Not, element by element.")
elementwise("BitwiseNot", "invert", 18, same_as(0), "BitwiseNot, element by element.")
elementwise("IsNaN", "isnan", 9, fixed("bool"), "True where the element is NaN.", influence=CHECK)


@op("IsInf", since=10, infer=fixed("bool"), accepts_out=True, influence=CHECK)
def is_infinite(xp: Any, x: Any, *, detect_negative: int, detect_positive: int, out: Any = None) -> Any:
    """True where `x` is an infinity with a detected sign.  ONNX IsInf since 10."""
    result = xp.asarray(xp.isinf(x) if out is None else xp.isinf(x, out))
    if not detect_negative:
        result &= x > 0
    if not detect_positive:
        result &= x < 0
    return result


@op(
    "BitShift",
    since=11,
    infer=broadcast(),
    accepts_out=True,
    integers=valid.shift,
    influence=POINTWISE,
    contract=contracts.shift,
)
def bit_shift(xp: Any, x: Any, y: Any, *, direction: str, out: Any = None) -> Any:
    """`x` shifted by `y` bits; beyond the width, or for a negative `y`, only the sign bit is left.

    A signed right shift keeps the sign.  ONNX BitShift since 11 (signed since 28).
    """
    bits = x.dtype.itemsize * 8
    # As unsigned, a negative `y` is also beyond the width; NumPy masks both, C and thus CuPy do not.
    past = y.astype(f"u{y.dtype.itemsize}", copy=False) >= bits
    shift = xp.where(past, bits - 1, y).astype(x.dtype)
    if direction == "RIGHT":
        result = xp.right_shift(x, shift, out)
        if x.dtype.kind == "u":
            result = xp.multiply(result, ~past, out)
        return xp.asarray(result)
    return xp.asarray(xp.multiply(xp.left_shift(x, shift, out), ~past, out))
