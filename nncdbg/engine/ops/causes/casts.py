"""Element type conversions: values that the new type cannot represent."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nncdbg.engine.dtypes import FLOATS, name_of
from nncdbg.engine.ops.causes import Birth, Cause
from nncdbg.engine.ops.causes.arithmetic import bracketed
from nncdbg.engine.ops.causes.numbers import EXACT, ends, is_float, largest, shown
from nncdbg.engine.ops.causes.places import Index, at, count, spelled, spot
from nncdbg.engine.ops.causes.summing import INFINITE, cause_of_number, decimal, zero_times_infinity
from nncdbg.engine.ops.types import normal_axis
from nncdbg.stats.inspection import bad

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
