"""Comparisons, Boolean and bitwise logic, and the tests for NaN and infinity.

A comparison with NaN is false, as in IEEE 754 and ONNX; `Equal` also compares strings.
"""

from __future__ import annotations

from typing import Any

from nncdbg.engine.ops import contracts
from nncdbg.engine.ops import valid_integers as valid
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.elementwise import elementwise
from nncdbg.engine.ops.influence import CHECK, POINTWISE, Infinities
from nncdbg.engine.ops.influence_selection import AND, EQUAL, OR
from nncdbg.engine.ops.types import broadcast, fixed, same_as

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
