"""Results that an integer type cannot represent: division by zero, out-of-range casts, a zero scale.

An op that can produce them declares `Op.integer_fault`, one of the functions below or a function that they
return.  Each first runs a cheap check (the divisor, or the least and greatest element), and finds the
elements only if that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nncdbg.engine.dtypes import COMPLEX, INTEGERS, integer_range, name_of
from nncdbg.engine.ops.types import element_type

if TYPE_CHECKING:
    from nncdbg.ir.records import Array

DIVISION = "integer division by zero"
RANGE = "cast out of range"
SCALE = "scale of zero"


@dataclass(frozen=True, slots=True, eq=False)
class IntegerFault:
    """Elements of one statement's results that its integer type cannot represent.

    `cause` is `DIVISION`, `RANGE` or `SCALE`.  `operand` is the number of the faulty operand and `elements`
    (bool, its shape) marks its faulty elements; `results` (bool, broadcasts to the results) marks the wrong
    elements of the results.  `target` is the integer type if the cause is a range.
    """

    cause: str
    operand: int
    elements: Array
    results: Array
    target: str = ""


FindIntegerFault: TypeAlias = Callable[[Mapping[str, Any], Sequence[Any]], IntegerFault | None]
"""`find(attributes, inputs) -> fault`: None if the integer type can represent every result."""


def divides_by_zero(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> IntegerFault | None:
    """Return the zeros of the divisor, operand 1, of an integer division or remainder."""
    divisor = inputs[1]
    if name_of(divisor.dtype) not in INTEGERS or divisor.all():
        return None
    if not inputs[0].size:
        return None
    zero = np.asarray(divisor == 0)
    return IntegerFault(DIVISION, 1, zero, zero)


def cast_by_attribute(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> IntegerFault | None:
    """Return the elements of `Cast`'s operand that the type `to` cannot represent."""
    return _out_of_range(inputs[0], element_type(attributes["to"]))


def cast_as_other(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> IntegerFault | None:
    """Return the elements of `CastLike`'s operand that the type of operand 1 cannot represent."""
    return _out_of_range(inputs[0], name_of(inputs[1].dtype))


def _out_of_range(x: Any, target: str) -> IntegerFault | None:
    source = name_of(x.dtype)
    if target not in INTEGERS or source in COMPLEX or source in ("str", "bool") or not x.size:
        return None
    low, high = integer_range(target)
    if source in INTEGERS:
        least, greatest = integer_range(source)
        if low <= least and greatest <= high:
            return None
        if low <= int(x.min()) and int(x.max()) <= high:
            return None
    elif low - 1 < float(x.min()) and float(x.max()) < high + 1:  # exact, and false for NaN
        return None
    elements = unrepresentable(x, target)
    return IntegerFault(RANGE, 0, elements, elements, target) if elements.any() else None


def unrepresentable(x: Array, target: str) -> Array:
    """Return which elements of a numeric tensor an integer type cannot represent (bool, its shape).

    Floats are truncated towards zero first; no integer type can represent NaN or infinities.
    """
    low, high = integer_range(target)
    if name_of(x.dtype) in INTEGERS:
        wide = x.astype(object)
        return np.asarray((wide < low) | (wide > high), bool)
    # Powers of two, so that f64 represents these bounds exactly.
    whole = np.trunc(x.astype(np.float64))
    return np.asarray(~((whole >= float(low)) & (whole < float(high + 1))))


def divides_by_scale(scale: int) -> FindIntegerFault:
    """Return the check of an op that divides by the scale in operand `scale`: its zeros and NaN."""

    def find(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> IntegerFault | None:
        given = inputs[scale] if scale < len(inputs) else None
        bad = None if given is None else bad_scales(given)
        return None if bad is None else IntegerFault(SCALE, scale, bad, np.asarray(True))

    return find


def bad_scales(scale: Any) -> Array | None:
    """Return which elements of a scale are zero or NaN (bool, its shape); None if none is."""
    bad = np.asarray((scale == 0) | np.isnan(scale))
    return bad if bad.any() else None
