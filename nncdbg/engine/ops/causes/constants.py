"""Values that are written in the program or drawn at random."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nncdbg.engine.ops.causes import Birth, Cause, Maker
from nncdbg.engine.ops.causes.numbers import EXACT, shown
from nncdbg.engine.ops.causes.places import at, count, element, spelled, spot
from nncdbg.engine.ops.causes.summing import cause_of_number, decimal
from nncdbg.engine.text.counting import elements
from nncdbg.ir.records import Array
from nncdbg.stats.inspection import bad


def constant(birth: Birth) -> Cause | None:
    index, what = spot(birth), "NaN" if birth.kind == "nan" else "infinite"
    number = birth.attributes.get("value")
    if birth.op == "nncdbg.FullLike" and number is not None and number - number == 0:
        return cause_of_number(birth, decimal(number), f"the constant{at(index)}")
    many = count(bad(birth.output, birth.kind))
    evidence = f"{elements(many, birth.output.size, 'the constant')} {what}"
    if birth.output.size > 1:
        evidence += f", the first{at(index)}"
    return Cause("bad parameter", evidence, "check the program that saved the model")


def padding(birth: Birth) -> Cause | None:
    value = birth.attributes.get("value")
    if value is None or value - value == 0:
        return None
    evidence = f"{birth.op} pads with {shown(value)}, from an attribute"
    return Cause("bad parameter", evidence, "pad with another value")


def unwritten(birth: Birth) -> Cause | None:
    many = count(bad(birth.output, birth.kind))
    evidence = f"{elements(many, birth.output.size)} uninitialized"
    return Cause("uninitialized read", evidence, 'set init="zeros", or write each element before it is read')


def remains(birth: Birth) -> Cause | None:
    many = count(bad(birth.output, birth.kind))
    evidence = f"{elements(many, birth.output.size)} not written at that moment, or no longer"
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
    x, ratio = element(birth.inputs[0], index), _ratio(birth)
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


def _ratio(birth: Birth) -> float:
    given: Array | None = birth.inputs[1] if len(birth.inputs) > 1 else None
    return float(given.reshape(())) if given is not None else float(birth.attributes.get("ratio", 0.5))


def shape_of_window(birth: Birth) -> Cause | None:
    size, periodic = int(birth.inputs[0].reshape(())), birth.attributes["periodic"]
    if size - (not periodic):
        return None
    evidence = f"a symmetric window of {size} element divides by its size minus 1"
    return Cause("zero divided by zero", evidence, "use 2 elements or more, or periodic=1")


def infinite(birth: Birth, made_by: Sequence[Maker]) -> bool:
    """Return True if a constant contains infinities and no NaN."""
    return not bool(np.isnan(birth.output).any())
