"""Reductions over axes, and running sums and products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from nncdbg.engine.diagnosis.cause import Birth, Cause
from nncdbg.engine.diagnosis.causes.arithmetic import zero_times_infinity
from nncdbg.engine.diagnosis.causes.numbers import EXACT, ends, largest, overflow_hint, shown
from nncdbg.engine.diagnosis.causes.places import Index, Region, infinities, many, region, spelled, spot
from nncdbg.engine.diagnosis.causes.rules import rule
from nncdbg.engine.diagnosis.causes.summing import (
    Sum,
    cause_of_number,
    cause_of_sum,
    chunks,
    decimal,
    sum_of,
)
from nncdbg.engine.ops.types import normal_axes, normal_axis

_EXTREMES = {"ReduceMax": "the maximum", "ReduceMin": "the minimum"}
_SUMS = {
    "ReduceSum": ("the sum", 1),
    "ReduceMean": ("the sum that the mean needs", 1),
    "ReduceL1": ("the sum of the magnitudes", 1),
    "ReduceSumSquare": ("the sum of squares", 2),
    "ReduceL2": ("the sum of squares", 2),
}
"""What is summed, and the power of the terms."""


def reduced_axes(birth: Birth) -> tuple[int, ...]:
    """The axes of the first operand that are reduced, by an attribute or by an operand."""
    x, given = birth.inputs[0], birth.attributes.get("axes")
    if len(birth.inputs) > 1 and birth.inputs[1] is not None:
        given = birth.inputs[1].ravel().tolist()
    if given is None or not len(given):
        return () if birth.attributes.get("noop_with_empty_axes") else tuple(range(x.ndim))
    return normal_axes(given, x.ndim)


def reduced_place(birth: Birth, axes: Sequence[int], index: Index) -> list[int | slice]:
    """What an element of the result was reduced from."""
    rank = birth.inputs[0].ndim
    kept = iter(index if len(index) < rank else [i for axis, i in enumerate(index) if axis not in axes])
    return [slice(None) if axis in axes else next(kept) for axis in range(rank)]


def empty_reduction(birth: Birth, number: int, axes: Sequence[int], what: str) -> Cause:
    """A reduction over no elements."""
    shape = birth.inputs[number].shape
    axis = next(axis for axis in axes if shape[axis] == 0)
    evidence = f"{what} of no elements: axis {axis} of {spelled(birth, number)} has size 0"
    hint = "omit the op for empty operands, or replace its result with Where"
    return Cause("empty reduction", evidence, hint)


def _from(birth: Birth) -> tuple[Region, Sequence[int]]:
    axes = reduced_axes(birth)
    return region(birth, 0, reduced_place(birth, axes, spot(birth))), axes


@rule(*_SUMS)
def reduced_sum(birth: Birth) -> Cause | None:
    source, axes = _from(birth)
    what, power = _SUMS[birth.op]
    if not source.values.size:
        return empty_reduction(birth, 0, axes, "the mean") if birth.op == "ReduceMean" else None
    return cause_of_sum(birth, _terms(birth.op, source.values, power), f"{what} of {source.words}")


def _terms(op: str, values: Any, power: float) -> Sum:
    found = sum_of(values, power)
    if op != "ReduceL1":
        return found
    return Sum(EXACT.subtract(found.positive, found.negative), posinf=found.posinf + found.neginf)


@rule(*_EXTREMES)
def extreme(birth: Birth) -> Cause | None:
    source, axes = _from(birth)
    return None if source.values.size else empty_reduction(birth, 0, axes, _EXTREMES[birth.op])


@rule("ReduceLogSum")
def logarithm_of_sum(birth: Birth) -> Cause | None:
    source, axes = _from(birth)
    if not source.values.size:
        return empty_reduction(birth, 0, axes, "the logarithm of the sum")
    found, words = sum_of(source.values), f"the sum of {source.words}"
    if not (found.posinf or found.neginf or found.nan):
        if found.total == 0 and birth.kind == "inf":
            return Cause("log of zero", f"{words} is 0", "add an epsilon before the logarithm")
        if found.total < 0 and birth.kind == "nan":
            hint = "find why the sum is negative, or keep it above 0 with Max before the logarithm"
            return Cause("log of a negative number", f"{words} is {shown(found.total)}", hint)
    elif found.neginf and not found.posinf:
        hint = "find the op where the infinity originates"
        return Cause("log of a negative number", f"{words} is -inf", hint)
    return cause_of_sum(birth, found, words)


@rule("ReduceLogSumExp")
def logarithm_of_exponentials(birth: Birth) -> Cause | None:
    source, axes = _from(birth)
    if not source.values.size:
        return empty_reduction(birth, 0, axes, "the logarithm of the sum of exponentials")
    top = float(source.values.max())
    if not math.isfinite(top):
        return None
    total = sum(float(np.exp(chunk - top).sum()) for chunk in chunks(source.values))
    exact = EXACT.add(decimal(top), decimal(math.log(total)))
    return cause_of_number(birth, exact, f"log(sum(exp({source.words})))")


@rule("ReduceProd")
def reduced_product(birth: Birth) -> Cause | None:
    return _cause_of_product(birth, _from(birth)[0])


@rule("CumSum", "CumProd")
def running(birth: Birth) -> Cause | None:
    index, x = spot(birth), birth.inputs[0]
    axis = normal_axis(int(birth.inputs[1].reshape(()).item()), x.ndim)
    here, exclusive = index[axis], bool(birth.attributes["exclusive"])
    until = slice(None, here + (not exclusive))
    if birth.attributes["reverse"]:
        until = slice(here + exclusive, None)
    source = region(birth, 0, [until if i == axis else place for i, place in enumerate(index)])
    if birth.op == "CumProd":
        return _cause_of_product(birth, source)
    return cause_of_sum(birth, sum_of(source.values), f"the sum of {source.words}")


def _cause_of_product(birth: Birth, source: Region) -> Cause | None:
    """By the logarithms of the factors: they tell how far the partial products go."""
    zeros, infinite, up, down = 0, 0, 0.0, 0.0
    for chunk in chunks(source.values):
        sizes = np.abs(chunk)
        zeros += int(np.count_nonzero(sizes == 0))
        infinite += int(np.count_nonzero(np.isinf(sizes)))
        powers = np.log10(sizes[np.isfinite(sizes) & (sizes > 0)])
        up += float(powers[powers > 0].sum())
        down += float(powers[powers < 0].sum())
    if birth.kind == "nan" and zeros and infinite:
        return zero_times_infinity(
            f"{source.words} contains {many(zeros, 'zero')} and {infinities(infinite)}"
        )
    words = f"the product of {source.words}"
    if not zeros:
        found = cause_of_number(birth, EXACT.power(Decimal(10), Decimal(up + down)), f"the size of {words}")
        if found is not None:
            return found
    partial = EXACT.power(Decimal(10), Decimal(up))
    dtype = birth.output.dtype
    if partial < EXACT.multiply(largest(dtype), Decimal("0.99")):
        return None
    evidence = (
        f"{words} overflows internally: its factors above 1 alone have the product {shown(partial)}, "
        f"and {ends(dtype)}"
    )
    return Cause("overflow", evidence, overflow_hint(dtype))


@rule("nncdbg.SumLike")
def sum_over_broadcast(birth: Birth) -> Cause | None:
    x, like = birth.inputs
    index, lead = spot(birth), x.ndim - like.ndim
    inner = (slice(None) if size == 1 else i for i, size in zip(index, like.shape, strict=True))
    source = region(birth, 0, [*[slice(None)] * lead, *inner])
    return cause_of_sum(birth, sum_of(source.values), f"the sum of {source.words}")
