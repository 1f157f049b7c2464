"""Functions of one number: logarithms, roots, exponentials, and functions with a domain."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np

from nncdbg.engine.dtypes import name_of
from nncdbg.engine.ops.causes import Birth, Cause, Made
from nncdbg.engine.ops.causes.numbers import EXACT, ends, largest, overflow_hint, overflows, shown
from nncdbg.engine.ops.causes.places import at, counted, element, spelled, spot
from nncdbg.engine.ops.causes.summing import INFINITE, cause_of_number, decimal, zero_times_infinity
from nncdbg.engine.ops.declaration import CauseRule

_MOVING = frozenset(
    {"Identity", "Cast", "CastLike", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Flatten"}
)
_MEANS = frozenset({"ReduceMean", "GlobalAveragePool", "AveragePool", "Div", "Mul"})
"""Ops that compute a mean, directly or as a sum over a count."""

CANCELLATION = "rounding can make E[x^2] - E[x]^2 negative: compute the variance as the mean of (x - mean)^2"
"""The fix for a `cancelling_variance`."""


def before_moving(maker: Made | None) -> Made | None:
    """Return the statement that computed a value, before any casts and reshapes of it."""
    while maker is not None and maker.op in _MOVING:
        maker = maker.of[0] if maker.of else None
    return maker


def cancelling_variance(maker: Made | None) -> bool:
    """Return True if a value is E[x^2] - E[x]^2, with or without an epsilon."""
    maker = before_moving(maker)
    if maker is not None and maker.op in ("Add", "Mul", "Div", "Max"):
        return any(cancelling_variance(each) for each in maker.of)
    if maker is None or maker.op != "Sub" or len(maker.of) < 2:
        return False
    mean, square = (before_moving(each) for each in maker.of[:2])
    return mean is not None and mean.op in _MEANS and _is_square(square)


def complement_of(maker: Made | None) -> Made | None:
    """Return the maker of `p` if a value is `1 - p`, or close to it."""
    maker = before_moving(maker)
    return (
        before_moving(maker.of[1]) if maker is not None and maker.op == "Sub" and len(maker.of) > 1 else None
    )


def _is_square(maker: Made | None) -> bool:
    if maker is None:
        return False
    return maker.op == "Pow" or (maker.op == "Mul" and len({*maker.names}) == 1)


def least(dtype: np.dtype[Any]) -> str:
    """Return a small number that a type can represent, for use as an epsilon."""
    return {"f16": "1e-6", "f64": "1e-12"}.get(name_of(dtype), "1e-7")


def logarithm(birth: Birth) -> Cause | None:
    x, name = birth.inputs[0], spelled(birth, 0)
    number = element(x, spot(birth))
    if number == 0:
        return Cause("log of zero", counted(birth, 0, x == 0, "0"), _log_hint(birth))
    if number < 0:
        hint = f"find why {name} is negative, or keep it above 0 with Max({name}, {least(x.dtype)})"
        return Cause("log of a negative number", counted(birth, 0, x < 0, "negative"), hint)
    return None


def _log_hint(birth: Birth) -> str:
    """Return a lossless form of the logarithm of the operand's expression, if there is one."""
    clipped = f"use Log(Max({spelled(birth, 0)}, {least(birth.inputs[0].dtype)}))"
    maker = before_moving(birth.makers[0]) if birth.makers else None
    if maker is None:
        return f"{clipped}, LogSoftmax(x) for Log(Softmax(x)), or -Softplus(-x) for Log(Sigmoid(x))"
    if maker.op == "Softmax":
        return f"use LogSoftmax({maker.spelled(0)}) instead of Log and Softmax"
    if maker.op == "Sigmoid":
        return f"use -Softplus(-{maker.spelled(0)}) instead of Log and Sigmoid"
    whole = complement_of(maker)
    if whole is not None and whole.op == "Sigmoid":
        return f"use -Softplus({whole.spelled(0)}) instead of the logarithm of 1 - Sigmoid"
    return clipped


def root(birth: Birth) -> Cause | None:
    x, name = birth.inputs[0], spelled(birth, 0)
    if element(x, spot(birth)) >= 0:
        return None
    hint = f"find why {name} is negative; if rounding is the reason, use Sqrt(Max({name}, 0))"
    if birth.makers and cancelling_variance(birth.makers[0]):
        hint = CANCELLATION
    return Cause("square root of a negative number", counted(birth, 0, x < 0, "negative"), hint)


def exponential(birth: Birth) -> Cause | None:
    x, index, dtype = birth.inputs[0], spot(birth), birth.output.dtype
    number = element(x, index)
    halves = 1 if birth.op == "Exp" else 2
    size = number if birth.op == "Exp" else abs(number)
    result = EXACT.divide(EXACT.exp(decimal(size)), Decimal(halves))
    if not overflows(result, dtype):
        return None
    if birth.op == "Sinh" and number < 0:
        result = EXACT.minus(result)
    most = EXACT.ln(EXACT.multiply(largest(dtype), Decimal(halves)))
    beyond = (x if birth.op == "Exp" else np.abs(x)) > x.dtype.type(float(most))
    evidence = (
        f"{birth.op.lower()}({shown(number)}){at(index)} = {shown(result)}, and {ends(dtype)}; "
        f"the largest exponent that fits is {shown(most)}"
    )
    if beyond.size > 1:
        evidence += f"; {counted(birth, 0, beyond, 'beyond it')}"
    hint = "subtract the maximum first, as Softmax and ReduceLogSumExp do, or clip the exponent"
    return Cause("overflow of the exponential", evidence, hint)


def _domain(outside: Callable[[Any], Any], words: str, hint: str) -> CauseRule:
    """Return the rule of a function with a domain; `outside` finds the elements beyond it."""

    def rule(birth: Birth) -> Cause | None:
        x = birth.inputs[0]
        if not outside(np.float64(element(x, spot(birth)))):
            return None
        return Cause("outside of the domain", counted(birth, 0, outside(x), words), hint)

    return rule


of_angle = _domain(np.isinf, "infinite", "find the op where the infinity originates, or clip the operand")
arcsine = _domain(
    lambda x: np.abs(x) > 1,
    "outside of [-1, 1]",
    "use Clip(x, -1, 1): rounding can move a cosine or a correlation past 1",
)
area_tangent = _domain(
    lambda x: np.abs(x) >= 1, "outside of (-1, 1)", "keep it inside: Clip(x, -1 + epsilon, 1 - epsilon)"
)
area_cosine = _domain(lambda x: x < 1, "below 1", "keep it in the domain: Max(x, 1)")


def tangent(birth: Birth) -> Cause | None:
    x, index = birth.inputs[0], spot(birth)
    number = element(x, index)
    if math.isinf(number) or not overflows(Decimal(math.tan(number)), x.dtype):
        return of_angle(birth)
    evidence = f"tan({shown(number)}){at(index)} = {shown(math.tan(number))}, and {ends(x.dtype)}"
    return Cause("overflow", evidence, overflow_hint(x.dtype))


def sloped(birth: Birth) -> Cause | None:
    index, x = spot(birth), birth.inputs[0]
    number = element(x, index)
    slope = float(birth.attributes["alpha"]) if birth.op == "LeakyRelu" else _slope(birth, index)
    words = f"{shown(number)} * {shown(slope)}{at(index)}"
    if 0 in (number, slope):
        return zero_times_infinity(f"the slope of {spelled(birth, 0)}: {words}")
    if not (math.isfinite(number) and math.isfinite(slope)):
        return None
    return cause_of_number(birth, EXACT.multiply(decimal(number), decimal(slope)), words)


def _slope(birth: Birth, index: tuple[int, ...]) -> float:
    """Return the slope of an element; before opset 7 a vector contains one slope per channel."""
    slope = birth.inputs[1]
    if birth.opset < 7 and slope.size > 1:
        return float(slope.reshape(-1)[index[1]])
    return float(element(slope, index))


def gated(birth: Birth) -> Cause | None:
    """x times a gate that closes below 0, or an exponential below 0; the factors are attributes."""
    index = spot(birth)
    number, name = element(birth.inputs[0], index), f"{spelled(birth, 0)}{at(index)}"
    factors = {key: value for key, value in birth.attributes.items() if isinstance(value, (int, float))}
    words = ", ".join(f"{key} {shown(value)}" for key, value in factors.items())
    if birth.op == "Celu" and factors["alpha"] == 0:
        return Cause("division by zero", f"{birth.op} divides by alpha, which is 0", "use an alpha above 0")
    if math.isinf(number):
        if birth.op == "Softsign":
            return Cause("infinity divided by infinity", f"{name} is {shown(number)}", INFINITE)
        return zero_times_infinity(f"{name} is {shown(number)}, and its factor in {birth.op} is 0")
    # Only its factors can take an activation of a finite number out of range.
    if max((abs(value) for value in factors.values()), default=0.0) <= 1:
        return None
    dtype = birth.output.dtype
    evidence = f"{birth.op} of {name} = {shown(number)} with {words}; {ends(dtype)}"
    return Cause("overflow", evidence, overflow_hint(dtype))
