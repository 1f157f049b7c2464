"""Gradient rules of elementwise ops.

At a jump of the slope: 0 for `Abs` and `Relu`, equal shares for `Max` and `Min`, the inner slope for `Clip`,
the slope of the negative side for `LeakyRelu` and `PRelu`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from nncdbg.engine.ops.declaration import Vjp
from nncdbg.engine.ops.gradient import (
    Applied,
    Emit,
    cast_like,
    indicator,
    number,
    summed_like,
)
from nncdbg.ir.records import Literal, Operand

Slope: TypeAlias = Callable[[Emit, Operand, str], Operand]
"""The derivative of an output with respect to its operand, from operand and output."""


def sloped(slope: Slope) -> Vjp:
    """Return the rule that multiplies the cotangent by a slope."""

    def vjp(emit: Emit, at: Applied) -> Sequence[Operand]:
        return (emit("Mul", at.d, slope(emit, at.x, at.y)),)

    return vjp


def over(divisor: Slope) -> Vjp:
    """Return the rule that divides the cotangent by a divisor."""

    def vjp(emit: Emit, at: Applied) -> Sequence[Operand]:
        return (emit("Div", at.d, divisor(emit, at.x, at.y)),)

    return vjp


def _square(emit: Emit, x: Operand) -> str:
    return emit("Mul", x, x)


def _one_minus_square(emit: Emit, x: Operand) -> str:
    return emit("Sub", number(1), _square(emit, x))


def _one_plus_square(emit: Emit, x: Operand) -> str:
    return emit("Add", _square(emit, x), number(1))


def _minus_one(emit: Emit, x: Operand) -> str:
    return emit("Sub", _square(emit, x), number(1))


def _root(emit: Emit, x: str) -> str:
    return emit("Sqrt", x)


def _negated(emit: Emit, x: str) -> str:
    return emit("Neg", x)


def _sigmoid_slope(emit: Emit, x: Operand, y: str) -> str:
    return emit("Mul", y, emit("Sub", number(1), y))


def _erf_slope(emit: Emit, x: Operand, y: str) -> str:
    bell = emit("Exp", _negated(emit, _square(emit, x)))
    return emit("Mul", bell, number(2 / math.sqrt(math.pi)))


def _step(emit: Emit, x: Operand, y: str) -> str:
    return emit("Max", emit("Sign", x), number(0))


def negative(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The negated cotangent."""
    return (emit("Neg", at.d),)


absolute = sloped(lambda emit, x, y: emit("Sign", x))
exponential = sloped(lambda emit, x, y: y)
logarithm = over(lambda emit, x, y: x)
root = over(lambda emit, x, y: emit("Mul", y, number(2)))
reciprocal = sloped(lambda emit, x, y: _negated(emit, _square(emit, y)))
sine = sloped(lambda emit, x, y: emit("Cos", x))
cosine = sloped(lambda emit, x, y: _negated(emit, emit("Sin", x)))
tangent = sloped(lambda emit, x, y: _one_plus_square(emit, y))
arcsine = over(lambda emit, x, y: _root(emit, _one_minus_square(emit, x)))
arccosine = over(lambda emit, x, y: _negated(emit, _root(emit, _one_minus_square(emit, x))))
arctangent = over(lambda emit, x, y: _one_plus_square(emit, x))
hyperbolic_sine = sloped(lambda emit, x, y: emit("Cosh", x))
hyperbolic_cosine = sloped(lambda emit, x, y: emit("Sinh", x))
tanh = sloped(lambda emit, x, y: _one_minus_square(emit, y))
area_sine = over(lambda emit, x, y: _root(emit, _one_plus_square(emit, x)))
area_cosine = over(lambda emit, x, y: _root(emit, _minus_one(emit, x)))
area_tangent = over(lambda emit, x, y: _one_minus_square(emit, x))
sigmoid = sloped(_sigmoid_slope)
erf = sloped(_erf_slope)
relu = sloped(_step)


def leaky_relu(emit: Emit, at: Applied) -> Sequence[Operand]:
    """1 above 0, alpha elsewhere."""
    low = emit("LessOrEqual", at.x, number(0))
    slope = emit("Where", low, number(at.attributes["alpha"]), emit("Sign", at.x))
    return (emit("Mul", at.d, slope),)


def prelu(emit: Emit, at: Applied) -> Sequence[Operand]:
    """As for LeakyRelu; for the slope, x where it is below 0."""
    x, slope = at.operands
    low = emit("LessOrEqual", x, number(0))
    steep = emit("Where", low, slope, emit("Sign", x))
    below = emit("Min", x, number(0))
    return emit("Mul", at.d, steep), summed_like(emit, emit("Mul", at.d, below), slope)


def thresholded_relu(emit: Emit, at: Applied) -> Sequence[Operand]:
    """1 above alpha, else 0."""
    high = emit("Greater", at.x, number(at.attributes["alpha"]))
    return (emit("Mul", at.d, indicator(emit, high, at.x)),)


def add(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent, for each operand."""
    return [summed_like(emit, at.d, operand) for operand in at.operands]


def subtract(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent, and the negated cotangent."""
    a, b = at.operands
    return summed_like(emit, at.d, a), summed_like(emit, emit("Neg", at.d), b)


def multiply(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent times the other operand."""
    a, b = at.operands
    return summed_like(emit, emit("Mul", at.d, b), a), summed_like(emit, emit("Mul", at.d, a), b)


def divide(emit: Emit, at: Applied) -> Sequence[Operand]:
    """d / b, and -d y / b."""
    a, b = at.operands
    share = emit("Div", at.d, b)
    return summed_like(emit, share, a), summed_like(emit, emit("Neg", emit("Mul", share, at.y)), b)


def remainder(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent, and minus the whole quotient times the cotangent."""
    a, b = at.operands
    quotient = emit("Round", emit("Div", emit("Sub", a, at.y), b))
    to_b = emit("Neg", emit("Mul", at.d, quotient))
    return summed_like(emit, at.d, a), summed_like(emit, to_b, b)


def power(emit: Emit, at: Applied) -> Sequence[Operand]:
    """d e x^(e-1) for the base, 0 where e is 0; d y log(x) for the exponent, 0 where base and y are 0."""
    x, e = at.operands
    if isinstance(e, Literal) and not isinstance(e.data, tuple):
        lower = emit("Pow", x, Literal(e.data - 1))
        slope = emit("Mul", lower, number(e.data)) if e.data else emit("Mul", at.y, number(0))
        return (summed_like(emit, emit("Mul", at.d, slope), x),)
    exponent = cast_like(emit, e, x) if isinstance(e, str) else e
    lower = emit("Pow", x, emit("Sub", exponent, number(1)))
    slope = emit("Mul", lower, exponent)
    slope = emit("Where", emit("Equal", exponent, number(0)), number(0), slope)
    # log(0) y is 0 in the limit where y is 0, and minus infinity where the exponent is 0.
    vanishes = emit("And", emit("Equal", x, number(0)), emit("Equal", at.y, number(0)))
    curve = emit("Mul", emit("Log", emit("Where", vanishes, number(1), x)), at.y)
    towards_e = emit("Mul", at.d, curve)
    return (
        summed_like(emit, emit("Mul", at.d, slope), x),
        summed_like(emit, cast_like(emit, towards_e, e), e),
    )


def extreme(emit: Emit, at: Applied) -> Sequence[Operand]:
    """For Max and Min: the cotangent to the operand that equals the result; equal shares if several do."""
    if len(at.operands) == 1:
        return (at.d,)
    hits = [cast_like(emit, emit("Equal", operand, at.y), at.y) for operand in at.operands]
    ties = emit("Sum", *hits) if len(hits) > 1 else hits[0]
    # Where the result is NaN, no operand equals it, and 0 / 0 is NaN.
    return [
        summed_like(emit, emit("Div", emit("Mul", at.d, hit), ties), operand)
        for hit, operand in zip(hits, at.operands, strict=True)
    ]


def clip(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent to the operand where it is within the bounds, else to the active bound."""
    inside = indicator(emit, emit("Equal", at.x, at.y), at.x)
    low, high = at.operand(1), at.operand(2)
    towards_x = emit("Mul", at.d, inside)
    raised = at.x if low is None else emit("Max", at.x, low)
    above = None if high is None else emit("Greater", raised, high)
    below = None
    if low is not None:
        below = emit("Less", at.x, low)
        below = below if above is None else emit("And", below, emit("Not", above))
    bounds = [
        None
        if condition is None
        else summed_like(emit, emit("Mul", at.d, indicator(emit, condition, at.x)), bound)
        for condition, bound in ((below, low), (above, high))
    ]
    return towards_x, *bounds


def where(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent to the selected operand; none to the condition."""
    condition, x, y = at.operands
    to_x = emit("Where", condition, at.d, number(0))
    to_y = emit("Where", condition, number(0), at.d)
    return None, summed_like(emit, to_x, x), summed_like(emit, to_y, y)
