"""Functions of one number: logarithms, roots, exponentials, and functions with a domain."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np

from nncdbg.engine.dtypes import name_of
from nncdbg.engine.ops.causes import Birth, Cause
from nncdbg.engine.ops.causes.makers import (
    CANCELLATION,
    before_moving,
    cancelling_variance,
    complement_of,
)
from nncdbg.engine.ops.causes.numbers import EXACT, ends, largest, overflow_hint, overflows, shown
from nncdbg.engine.ops.causes.places import at, counted, element, spelled, spot
from nncdbg.engine.ops.causes.summing import decimal
from nncdbg.engine.ops.declaration import CauseRule


def least(dtype: np.dtype[Any]) -> str:
    """A small number that a type still holds, for an epsilon."""
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
    """The form that computes the logarithm of what made the operand without loss, if there is one."""
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
    """For a function that takes some numbers only; `outside` finds the others."""

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
