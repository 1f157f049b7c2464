"""Pools: means and norms of windows and of whole planes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nncdbg.engine.ops.causes import Birth, Cause
from nncdbg.engine.ops.causes.matrices import window_of
from nncdbg.engine.ops.causes.numbers import EXACT, shown
from nncdbg.engine.ops.causes.places import Place, at, part, spelled, spot
from nncdbg.engine.ops.causes.reductions import empty_reduction
from nncdbg.engine.ops.causes.summing import INFINITE, Sum, cause_of_sum, decimal, sum_of, too_large
from nncdbg.engine.ops.pooling import divisors
from nncdbg.engine.ops.windows import axes_of
from nncdbg.ir.records import Array

PADDING = "use less padding, so that each window contains an element; count_include_pad=1 counts the padding"


def window(birth: Birth) -> Cause | None:
    index, x = spot(birth), birth.inputs[0]
    axes = axes_of(birth.attributes, birth.attributes["kernel_shape"])
    values = window_of(birth, axes, index)
    where = f"window {list(index[2:])} of {part(birth, 0, index[:2])}"
    nothing = not values.size
    if birth.op == "AveragePool":
        nothing = divisors(birth.attributes, axes, x.shape[2:])[index[2:]] == 0
    if nothing:
        return Cause("empty reduction", f"{where} contains only padding", PADDING)
    return _of_values(birth, values, where)


def plane(birth: Birth) -> Cause | None:
    x, index = birth.inputs[0], spot(birth)
    place: Place = [*index[:2], *[slice(None)] * (x.ndim - 2)]
    values = x[tuple(place)]
    if not values.size:
        return empty_reduction(birth, 0, range(2, x.ndim), "the mean")
    return _of_values(birth, values, part(birth, 0, place))


def _of_values(birth: Birth, values: Array, where: str) -> Cause | None:
    if birth.op == "MaxPool":
        return None
    if "Average" in birth.op:
        return cause_of_sum(birth, sum_of(values), f"the sum of {where}")
    p = birth.attributes["p"]
    return cause_of_sum(birth, sum_of(np.abs(values), p), f"the sum of powers of {p} of {where}")


def response(birth: Birth) -> Cause | None:
    index, given = spot(birth), birth.attributes
    size, channel = given["size"], index[1]
    begin = max(channel - (size - 1) // 2, 0)
    place: Place = [index[0], slice(begin, channel - (size - 1) // 2 + size), *index[2:]]
    around, x = birth.inputs[0][tuple(place)], float(birth.inputs[0][index])
    where, squares = part(birth, 0, place), sum_of(around, 2)
    if squares.posinf:
        evidence = f"{where} contains an infinity, and is divided by a power of its sum of squares: inf / inf"
        return Cause("infinity divided by infinity", evidence, INFINITE)
    factor = EXACT.divide(decimal(given["alpha"]), decimal(size))
    base = EXACT.add(decimal(given["bias"]), EXACT.multiply(factor, squares.total))
    words, beta = f"bias + alpha / size * sum of squares of {where} = {shown(base)}", given["beta"]
    if not base.is_finite():
        return None
    if base < 0 and beta != int(beta):
        return Cause("power of a negative number", words, "use positive values for alpha and bias")
    divisor = EXACT.power(base, decimal(beta))
    if not float(divisor):
        name = "zero divided by zero" if x == 0 else "division by zero"
        return Cause(name, f"{words}, and {spelled(birth, 0)}{at(index)} is {shown(x)}", "use a bias above 0")
    exact = EXACT.divide(decimal(x), divisor) if math.isfinite(x) else decimal(0)
    cause = too_large(birth, _single(exact), f"{shown(x)} over {shown(divisor)}{at(index)}")
    return cause or too_large(birth, squares, f"the sum of squares of {where}")


def _single(exact: Any) -> Sum:
    return Sum(positive=exact) if exact > 0 else Sum(negative=exact)
