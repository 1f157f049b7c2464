"""Numbers beyond the range of every element type: limits of the types, and formatting."""

from __future__ import annotations

import math
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from nncdbg.engine.dtypes import FLOATS, INTEGERS, name_of
from nncdbg.engine.ops.precision import is_narrow

EXACT = Context(prec=24, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
"""Decimal numbers of 24 digits: no f64 overflows in them, and no operation raises."""


def is_float(array: Any) -> bool:
    """Return True if a value is a tensor of real floats, narrow floats included."""
    return isinstance(array, np.ndarray) and not array.dtype.hasobject and name_of(array.dtype) in FLOATS


@cache
def largest(dtype: np.dtype[Any]) -> Decimal:
    """The largest finite number of a float type."""
    return Decimal(float(ml_dtypes.finfo(dtype).max))


@cache
def _end(dtype: np.dtype[Any]) -> Decimal:
    """Return the least number that rounds to infinity: half a step above the largest."""
    most = largest(dtype)
    step = Decimal(2) ** (math.frexp(float(most))[1] - 1 - int(ml_dtypes.finfo(dtype).nmant))
    return EXACT.add(most, EXACT.divide(step, Decimal(2)))


def overflows(value: Decimal, dtype: np.dtype[Any]) -> bool:
    """Return True if a number is too large for a float type."""
    return not value.is_nan() and EXACT.abs(value) >= _end(dtype)


def ends(dtype: np.dtype[Any]) -> str:
    """Describe the limit of a type: `the largest f16 is 65504`."""
    return f"the largest {name_of(dtype)} is {shown(largest(dtype))}"


def shown(value: Any) -> str:
    """Format about four digits; integers below a million in full: `0.5`, `65504`, `1.8e7`, `inf`."""
    number = value if isinstance(value, Decimal) else Decimal(value)
    if not number.is_finite():
        return str(float(number))
    if EXACT.abs(number) < 1_000_000:
        whole = number.to_integral_value()
        if EXACT.abs(EXACT.subtract(number, whole)) <= EXACT.multiply(EXACT.abs(number), _ROUNDING):
            return str(int(whole))
    short = _SHORT.plus(number)
    power = short.adjusted()
    if -4 <= power < 5:
        return f"{float(short):g}"
    digits = f"{float(short.scaleb(-power, EXACT)):.3f}".rstrip("0").rstrip(".")
    return f"{digits}e{power}"


def exact(element: Any) -> str:
    """Format the fewest digits, at least four, that identify an element in its type: `0.99999994`, `300`."""
    if element.dtype.kind in "iub" or name_of(element.dtype) in INTEGERS:
        return str(int(element))
    number = float(element)
    if number.is_integer() and abs(number) < 1e16:
        return str(int(number))
    found = (f"{number:.{digits}g}" for digits in range(4, 17))
    with np.errstate(over="ignore"):  # fewer digits may round up beyond the largest number
        return next((text for text in found if element.dtype.type(float(text)) == element), repr(number))


_SHORT = Context(prec=4, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
_ROUNDING = Decimal("1e-9")


def overflow_hint(dtype: np.dtype[Any]) -> str:
    """Return the usual fix for a number that does not fit."""
    if is_narrow(dtype):
        return (
            "keep this op in f32, or scale its operands down before it; "
            "in a gradient, use a smaller loss scale"
        )
    return "find why the values grow: normalize them, clip them, or lower the learning rate"
