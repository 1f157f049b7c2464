"""Sums, products, quotients and powers of two numbers, element by element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nncdbg.engine.ops.causes import Birth, Cause
from nncdbg.engine.ops.causes.numbers import EXACT, overflows, shown
from nncdbg.engine.ops.causes.places import aligned, at, counted, elements, spelled, spot
from nncdbg.engine.ops.causes.pointwise import CANCELLATION, cancelling_variance, least
from nncdbg.engine.ops.causes.summing import (
    INFINITE,
    cause_of_number,
    cause_of_sum,
    decimal,
    sum_of,
    zero_times_infinity,
)


def addition(birth: Birth) -> Cause | None:
    index = spot(birth)
    terms = elements(birth, index)
    sign = "-" if birth.op == "Sub" else "+"
    words = f" {sign} ".join(bracketed(term) for term in terms)
    if sign == "-":
        terms[1] = -terms[1]
    if birth.kind == "nan" and math.inf in terms and -math.inf in terms:
        names = f" {sign} ".join(spelled(birth, i) for i in range(len(terms)))
        return Cause("infinity minus infinity", f"{names}{at(index)} is {words}", INFINITE)
    if len(terms) == 2 and not overflows(EXACT.add(*map(decimal, terms)), birth.output.dtype):
        return None  # A sum of two terms has no partial sums.
    return cause_of_sum(birth, sum_of(np.array(terms, np.float64)), f"{words}{at(index)}")


def bracketed(number: Any) -> str:
    """Format a number for use in a formula, in parentheses if needed."""
    return f"({shown(number)})" if number < 0 else shown(number)


def multiplication(birth: Birth) -> Cause | None:
    index = spot(birth)
    a, b = elements(birth, index)
    words = f"{bracketed(a)} * {bracketed(b)}{at(index)}"
    if 0 in (a, b) and (math.isinf(a) or math.isinf(b)):
        return zero_times_infinity(f"{spelled(birth, 0)} * {spelled(birth, 1)} is {words}")
    if math.isfinite(a) and math.isfinite(b):
        return cause_of_number(birth, EXACT.multiply(decimal(a), decimal(b)), words)
    return None


def division(birth: Birth) -> Cause | None:
    index, divisor = spot(birth), aligned(birth)[1]
    a, b = elements(birth, index)
    words, name = f"{bracketed(a)} / {bracketed(b)}{at(index)}", spelled(birth, 1)
    if b == 0:
        cause = "zero divided by zero" if a == 0 else "division by zero"
        hint = f"divide by {name} + {least(divisor.dtype)}, or use Where for the elements that are 0"
        return Cause(cause, f"{words}; {counted(birth, 1, divisor == 0, '0')}", hint)
    if math.isinf(a) and math.isinf(b):
        evidence = f"{spelled(birth, 0)} / {name} is {words}"
        return Cause("infinity divided by infinity", evidence, INFINITE)
    if math.isfinite(a) and math.isfinite(b):
        return cause_of_number(birth, EXACT.divide(decimal(a), decimal(b)), words)
    return None


def reciprocal(birth: Birth) -> Cause | None:
    x, index = birth.inputs[0], spot(birth)
    (number,) = elements(birth, index)
    if number == 0:
        hint = f"use Reciprocal of {spelled(birth, 0)} + {least(x.dtype)}"
        return Cause("division by zero", counted(birth, 0, x == 0, "0"), hint)
    return cause_of_number(
        birth, EXACT.divide(decimal(1), decimal(number)), f"1 / {bracketed(number)}{at(index)}"
    )


def remainder(birth: Birth) -> Cause | None:
    index, divisor = spot(birth), aligned(birth)[1]
    a, b = elements(birth, index)
    if b == 0:
        hint = f"use Where for the elements where {spelled(birth, 1)} is 0"
        return Cause("division by zero", counted(birth, 1, divisor == 0, "0"), hint)
    if math.isinf(a):
        evidence = f"the remainder of {shown(a)} by {shown(b)}{at(index)}"
        return Cause("outside of the domain", evidence, INFINITE)
    return None


def power(birth: Birth) -> Cause | None:
    x, index = aligned(birth)[0], spot(birth)
    base, exponent = elements(birth, index)
    words, name = f"{bracketed(base)} ** {bracketed(exponent)}{at(index)}", spelled(birth, 0)
    if base == 0 and exponent < 0:
        hint = f"add {least(x.dtype)} to {name} before the power"
        return Cause("power of zero", f"{words}; {counted(birth, 0, x == 0, '0')}", hint)
    if not (math.isfinite(base) and math.isfinite(exponent)):
        return None
    if base < 0 and exponent != int(exponent):
        hint = f"a negative base needs a whole exponent: Pow(Abs({name}), ...), or Max({name}, 0)"
        if birth.makers and cancelling_variance(birth.makers[0]):
            hint = CANCELLATION
        return Cause("power of a negative number", f"{words}; {counted(birth, 0, x < 0, 'negative')}", hint)
    return cause_of_number(birth, EXACT.power(decimal(base), decimal(exponent)), words)
