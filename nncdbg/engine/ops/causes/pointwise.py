"""Causes element by element: functions, arithmetic, casts, constants; and results of only zeros."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from nncdbg.dtypes import FLOATS, name_of
from nncdbg.engine.ops.causes import Birth, Cause, Made, Maker
from nncdbg.engine.ops.causes.evidence import (
    EXACT,
    INFINITE,
    Index,
    aligned,
    at,
    cause_of_number,
    cause_of_sum,
    count,
    counted,
    decimal,
    element,
    elements,
    ends,
    is_float,
    largest,
    overflow_hint,
    overflows,
    shown,
    spelled,
    spot,
    sum_of,
    zero_times_infinity,
)
from nncdbg.engine.ops.declaration import CauseRule
from nncdbg.engine.ops.types import normal_axis
from nncdbg.ir.records import Array
from nncdbg.stats.inspection import bad
from nncdbg.text.counting import elements as elements_text

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
    if mean is None or mean.op not in _MEANS or square is None:
        return False
    return square.op == "Pow" or (square.op == "Mul" and len({*square.names}) == 1)


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
    # The operand is 1 - p, or close to it.
    whole = before_moving(maker.of[1]) if maker.op == "Sub" and len(maker.of) > 1 else None
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


SATURATE = (
    "keep the value in a wider type, or scale it into range first; saturate=1 limits it to the largest number"
)
RANGE = "keep this value in f32 or bf16, or scale it into range before the cast"


def cast(birth: Birth) -> Cause | None:
    x, index, target = birth.inputs[0], spot(birth), birth.output.dtype
    name, kind = name_of(target), "NaN" if birth.kind == "nan" else "infinite"
    if x.dtype.hasobject or x.dtype.kind in "SU":
        text = repr(x[index])[:40]
        cause = "bad input" if float(x[index]) != float(x[index]) else "cast out of range"
        return Cause(cause, f"{spelled(birth, 0)}{at(index)} is the text {text}, {kind} in {name}", RANGE)
    number = float(x[index])
    if math.isnan(number):
        return None
    many = count(bad(birth.output, birth.kind))
    evidence = f"{spelled(birth, 0)}{at(index)} is {shown(number)}, and {ends(target)}"
    if name == "f8e8m0fnu":
        held = f"{name} represents powers of 2 from 2**-127 to 2**127"
        evidence = f"{spelled(birth, 0)}{at(index)} is {shown(number)}, and {held}"
    if birth.output.size > 1:
        evidence += f"; {many} of {birth.output.size} elements become {kind}"
    hint = SATURATE if name.startswith("f8") else RANGE
    return Cause("cast out of range", evidence, hint)


def bit_cast(birth: Birth) -> Cause | None:
    index, name = spot(birth), name_of(birth.output.dtype)
    what = "a NaN" if birth.kind == "nan" else "an infinity"
    evidence = f"the bits of {spelled(birth, 0)}{at(index)} represent {what} in {name}"
    return Cause("bad input", evidence, "check that these bits were written as this type")


def quantize(birth: Birth) -> Cause | None:
    """The cause in QuantizeLinear; only a result in a float type can hold NaN or infinity."""
    index = spot(birth)
    x, scale = float(birth.inputs[0][index]), _parameter(birth, 1, index)
    if scale == 0 and x == 0:
        evidence = f"{spelled(birth, 0)}{at(index)} and its scale {spelled(birth, 1)} are 0"
        return Cause("zero divided by zero", evidence, "limit each scale to a minimum above 0")
    if math.isinf(x) and math.isinf(scale):
        evidence = f"{spelled(birth, 0)}{at(index)} and its scale {spelled(birth, 1)} are infinite"
        return Cause("infinity divided by infinity", evidence, INFINITE)
    if name_of(birth.output.dtype) not in FLOATS:
        return None
    zero = _parameter(birth, 2, index) if len(birth.inputs) > 2 and birth.inputs[2] is not None else 0.0
    quotient = math.inf if scale == 0 else float(x) / scale + zero
    if abs(quotient) < float(largest(birth.output.dtype)):
        return None
    words = f"{shown(x)} / {shown(scale)}{at(index)} is {shown(quotient)}, and {ends(birth.output.dtype)}"
    return Cause("cast out of range", words, SATURATE)


def dequantize(birth: Birth) -> Cause | None:
    index = spot(birth)
    x, scale = float(birth.inputs[0][index]), _parameter(birth, 1, index)
    zero = _parameter(birth, 2, index) if len(birth.inputs) > 2 and birth.inputs[2] is not None else 0.0
    words = f"({shown(x)} - {shown(zero)}) * {shown(scale)}{at(index)}"
    if math.isinf(x) and math.isinf(zero):
        return Cause("infinity minus infinity", words, INFINITE)
    if 0 in (x - zero, scale) and math.inf in (abs(x - zero), abs(scale)):
        return zero_times_infinity(words)
    if not (math.isfinite(x - zero) and math.isfinite(scale)):
        return None
    return cause_of_number(birth, EXACT.multiply(decimal(x - zero), decimal(scale)), words)


def _parameter(birth: Birth, number: int, index: Index) -> float:
    """Return the scale or the zero point of an element: per tensor, per axis, or per block."""
    value, axis = birth.inputs[number], birth.attributes.get("axis", 1)
    if value.size == 1:
        return float(value.reshape(()))
    place = normal_axis(axis, len(index))
    block = birth.attributes.get("block_size", 0)
    if not block:
        return float(value[index[place]])
    inside = [i // block if axis == place else i for axis, i in enumerate(index)]
    return float(value[tuple(inside)])


def dynamic(birth: Birth) -> Cause | None:
    """The cause in DynamicQuantizeLinear; the scale is the range of x over 255."""
    x: Any = birth.inputs[0]
    if not (is_float(x) and x.size) or not np.isfinite(x).all():
        return None
    top, low = max(float(x.max()), 0.0), min(float(x.min()), 0.0)
    words = f"the range of {spelled(birth, 0)}: {shown(top)} - {bracketed(low)}"
    return cause_of_number(birth, EXACT.subtract(decimal(top), decimal(low)), words)


def constant(birth: Birth) -> Cause | None:
    index, what = spot(birth), "NaN" if birth.kind == "nan" else "infinite"
    number = birth.attributes.get("value")
    if birth.op == "nncdbg.FullLike" and number is not None and number - number == 0:
        return cause_of_number(birth, decimal(number), f"the constant{at(index)}")
    many = count(bad(birth.output, birth.kind))
    evidence = f"{elements_text(many, birth.output.size, 'the constant')} {what}"
    if birth.output.size > 1:
        evidence += f", the first{at(index)}"
    return Cause("bad parameter", evidence, "check the program that saved the model")


def padding(birth: Birth) -> Cause | None:
    value = birth.attributes.get("value")
    if value is None or value - value == 0:
        return None
    evidence = f"{birth.op} pads with {shown(value)}, from an attribute"
    return Cause("bad parameter", evidence, "pad with another value")


def uninitialized(birth: Birth) -> Cause | None:
    many = count(bad(birth.output, birth.kind))
    evidence = f"{elements_text(many, birth.output.size)} uninitialized"
    return Cause("uninitialized read", evidence, 'set init="zeros", or write each element before it is read')


def remains(birth: Birth) -> Cause | None:
    many = count(bad(birth.output, birth.kind))
    evidence = f"{elements_text(many, birth.output.size)} not written at that moment, or no longer"
    return Cause("uninitialized read", evidence, "order the reader by an event: see `nncdbg races`")


def normal(birth: Birth) -> Cause | None:
    """The cause in a normal draw; no draw is more than twelve deviations from the mean."""
    mean, scale = birth.attributes["mean"], birth.attributes["scale"]
    words = f"mean {shown(mean)} and scale {shown(scale)}"
    if not (math.isfinite(mean) and math.isfinite(scale)):
        return _not_finite(birth, words)
    farthest = EXACT.add(decimal(abs(mean)), EXACT.multiply(decimal(abs(scale)), decimal(12)))
    return cause_of_number(birth, farthest, f"the largest magnitude for {words}")


def uniform(birth: Birth) -> Cause | None:
    low, high = birth.attributes["low"], birth.attributes["high"]
    words = f"low {shown(low)} and high {shown(high)}"
    if not (math.isfinite(low) and math.isfinite(high)):
        return _not_finite(birth, words)
    width = EXACT.subtract(decimal(high), decimal(low))
    farthest = max(decimal(abs(low)), decimal(abs(high)), EXACT.abs(width))
    return cause_of_number(birth, farthest, f"the largest magnitude for {words}")


def _not_finite(birth: Birth, words: str) -> Cause:
    return Cause("bad parameter", f"{birth.op} received {words}", "make both finite")


def dropout(birth: Birth) -> Cause | None:
    """x * mask / (1 - ratio), in training."""
    index = spot(birth)
    x, given = element(birth.inputs[0], index), birth.inputs[1] if len(birth.inputs) > 1 else None
    ratio = float(birth.attributes.get("ratio", 0.5) if given is None else given.reshape(()))
    if x - x != 0:
        evidence = f"{spelled(birth, 0)}{at(index)} is {shown(x)}, and Dropout multiplies it by 0"
        return Cause("zero times infinity", evidence, "find the op where the infinity originates")
    if ratio == 1:
        return Cause(
            "division by zero",
            "the ratio is 1: kept elements are divided by 1 - ratio",
            "use a ratio below 1",
        )
    exact = EXACT.divide(decimal(x), decimal(1 - ratio))
    return cause_of_number(birth, exact, f"{shown(x)} / (1 - {shown(ratio)}){at(index)}")


def shape_of_window(birth: Birth) -> Cause | None:
    size, periodic = int(birth.inputs[0].reshape(())), birth.attributes["periodic"]
    if size - (not periodic):
        return None
    evidence = f"a symmetric window of {size} element divides by its size minus 1"
    return Cause("zero divided by zero", evidence, "use 2 elements or more, or periodic=1")


def infinite(birth: Birth, made_by: Sequence[Maker]) -> bool:
    """Return True if a constant contains infinities and no NaN."""
    return not bool(np.isnan(birth.output).any())


Operands: TypeAlias = "Sequence[tuple[str, Array]]"
"""The names and values of the non-empty float operands."""


def quotient(operands: Operands, result: Array) -> Cause:
    infinite = next((name for name, each in operands if np.isinf(np.asarray(each, np.float64)).any()), None)
    if infinite is not None:
        return Cause("division by infinity", f"%{infinite} has Inf, and x / Inf is 0", "")
    return underflow(operands, result)


def no_positive_input(operands: Operands, result: Array) -> Cause:
    name, array = operands[0]
    most = float(np.asarray(array, np.float64).max())
    evidence = f"the largest element of %{name} is {most:.4g}"
    return Cause("no positive input", evidence, "check the bias and the sign")


def underflow(operands: Operands, result: Array) -> Cause:
    seen = []
    for name, array in dict(operands).items():
        sizes = np.abs(np.asarray(array, np.float64))
        sizes = sizes[sizes > 0]
        if sizes.size:
            seen.append(f"|%{name}| is {sizes.min():.3g} to {sizes.max():.3g}")
    evidence = f"{', '.join(seen)}; {_limit(result)}"
    return Cause("underflow", evidence, "compute this statement in f32, or scale its operands up before it")


def exponential_underflow(operands: Operands, result: Array) -> Cause:
    name, array = operands[0]
    exact = np.asarray(array, np.float64)
    evidence = f"%{name} is {exact.min():.3g} to {exact.max():.3g}; {_limit(result)}"
    return Cause("underflow", evidence, "compute this statement in f32, or keep its operand closer to 0")


def _limit(result: Array) -> str:
    smallest = float(ml_dtypes.finfo(result.dtype).smallest_subnormal)
    return f"{name_of(result.dtype)} rounds results below about {smallest / 2:.1g} to 0"
