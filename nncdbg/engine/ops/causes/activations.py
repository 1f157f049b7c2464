"""Activations: an infinity meets a factor of 0, or a slope is too steep."""

from __future__ import annotations

import math

from nncdbg.engine.ops.causes import Birth, Cause
from nncdbg.engine.ops.causes.arithmetic import zero_times_infinity
from nncdbg.engine.ops.causes.numbers import EXACT, ends, overflow_hint, shown
from nncdbg.engine.ops.causes.places import at, element, spelled, spot
from nncdbg.engine.ops.causes.summing import INFINITE, cause_of_number, decimal


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
    """Before opset 7 a vector holds one slope for each channel."""
    slope = birth.inputs[1]
    if birth.opset < 7 and slope.size > 1:
        return float(slope.reshape(-1)[index[1]])
    return float(element(slope, index))


def gated(birth: Birth) -> Cause | None:
    """x times a gate that closes below, or an exponential below 0; the factors are attributes."""
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
    # Nothing but its factors takes an activation of a finite number out of range.
    if max((abs(value) for value in factors.values()), default=0.0) <= 1:
        return None
    dtype = birth.output.dtype
    evidence = f"{birth.op} of {name} = {shown(number)} with {words}; {ends(dtype)}"
    return Cause("overflow", evidence, overflow_hint(dtype))
