"""Reductions over axes, and running sums and products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal

import ml_dtypes
import numpy as np

from nncdbg.engine.dtypes import name_of
from nncdbg.engine.ops.causes import Birth, Cause, Maker
from nncdbg.engine.ops.causes.numbers import EXACT, ends, largest, overflow_hint, shown
from nncdbg.engine.ops.causes.places import ElementRegion, Index, infinities, many, region, spelled, spot
from nncdbg.engine.ops.causes.summing import (
    Sum,
    cause_of_number,
    cause_of_sum,
    chunks,
    decimal,
    sum_of,
    zero_times_infinity,
)
from nncdbg.engine.ops.declaration import CauseRule
from nncdbg.engine.ops.types import normal_axes, normal_axis


def reduced_axes(birth: Birth) -> tuple[int, ...]:
    """Return the reduced axes of the first operand, from an attribute or an operand."""
    x, given = birth.inputs[0], birth.attributes.get("axes")
    if len(birth.inputs) > 1 and birth.inputs[1] is not None:
        given = birth.inputs[1].ravel().tolist()
    if given is None or not len(given):
        return () if birth.attributes.get("noop_with_empty_axes") else tuple(range(x.ndim))
    return normal_axes(given, x.ndim)


def reduced_place(birth: Birth, axes: Sequence[int], index: Index) -> list[int | slice]:
    """Return the place of the elements that reduce to an element of the result."""
    rank = birth.inputs[0].ndim
    kept = iter(index if len(index) < rank else [i for axis, i in enumerate(index) if axis not in axes])
    return [slice(None) if axis in axes else next(kept) for axis in range(rank)]


def empty_reduction(birth: Birth, number: int, axes: Sequence[int], what: str) -> Cause:
    """Return the cause for a reduction over no elements."""
    shape = birth.inputs[number].shape
    axis = next(axis for axis in axes if shape[axis] == 0)
    evidence = f"{what} of no elements: axis {axis} of {spelled(birth, number)} has size 0"
    hint = "omit the op for empty operands, or replace its result with Where"
    return Cause("empty reduction", evidence, hint)


def _from(birth: Birth) -> tuple[ElementRegion, Sequence[int]]:
    axes = reduced_axes(birth)
    return region(birth, 0, reduced_place(birth, axes, spot(birth))), axes


def _summed(what: str, power: float = 1, *, mean: bool = False, sizes: bool = False) -> CauseRule:
    """Return the rule of a sum of powers of the elements; `sizes` sums absolute values."""

    def rule(birth: Birth) -> Cause | None:
        source, axes = _from(birth)
        if not source.values.size:
            return empty_reduction(birth, 0, axes, "the mean") if mean else None
        found = sum_of(source.values, power)
        if sizes:
            found = Sum(EXACT.subtract(found.positive, found.negative), posinf=found.posinf + found.neginf)
        return cause_of_sum(birth, found, f"{what} of {source.words}")

    return rule


total = _summed("the sum")
mean = _summed("the sum that the mean needs", mean=True)
total_of_sizes = _summed("the sum of the magnitudes", sizes=True)
total_of_squares = _summed("the sum of squares", 2)


def _extreme(what: str) -> CauseRule:
    def rule(birth: Birth) -> Cause | None:
        source, axes = _from(birth)
        return None if source.values.size else empty_reduction(birth, 0, axes, what)

    return rule


greatest, least = _extreme("the maximum"), _extreme("the minimum")


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
        return cause_of_sum(birth, found, words) or _rounded(birth, found, len(source.values), words)
    if found.neginf and not found.posinf:
        hint = "find the op where the infinity originates"
        return Cause("log of a negative number", f"{words} is -inf", hint)
    return cause_of_sum(birth, found, words)


def _rounded(birth: Birth, found: Sum, count: int, words: str) -> Cause | None:
    """Return the cause if rounding of `count` terms may make a finite positive sum negative, or 0."""
    dtype = birth.output.dtype
    step = Decimal(float(ml_dtypes.finfo(dtype).eps)) * count
    if found.total > EXACT.multiply(EXACT.subtract(found.positive, found.negative), step):
        return None
    kind, wrong = ("a negative number", "negative") if birth.kind == "nan" else ("zero", "0")
    evidence = f"{words} is {shown(found.total)}, and rounding in {name_of(dtype)} makes it {wrong}"
    hint = "keep the sum above 0 with Max before the logarithm, or add in a wider type"
    return Cause(f"log of {kind}", evidence, hint)


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


def reduced_product(birth: Birth) -> Cause | None:
    return _cause_of_product(birth, _from(birth)[0])


def running_sum(birth: Birth) -> Cause | None:
    source = _until(birth)
    return cause_of_sum(birth, sum_of(source.values), f"the sum of {source.words}")


def running_product(birth: Birth) -> Cause | None:
    return _cause_of_product(birth, _until(birth))


def _until(birth: Birth) -> ElementRegion:
    """Return the part that a running sum or product covers up to the element."""
    index, x = spot(birth), birth.inputs[0]
    axis = normal_axis(int(birth.inputs[1].reshape(()).item()), x.ndim)
    here, exclusive = index[axis], bool(birth.attributes["exclusive"])
    until = slice(None, here + (not exclusive))
    if birth.attributes["reverse"]:
        until = slice(here + exclusive, None)
    return region(birth, 0, [until if i == axis else place for i, place in enumerate(index)])


def _cause_of_product(birth: Birth, source: ElementRegion) -> Cause | None:
    """Return the cause in a product; logarithms of the factors give the size of the partial products."""
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


def sum_over_broadcast(birth: Birth) -> Cause | None:
    x, like = birth.inputs
    index, lead = spot(birth), x.ndim - like.ndim
    inner = (slice(None) if size == 1 else i for i, size in zip(index, like.shape, strict=True))
    source = region(birth, 0, [*[slice(None)] * lead, *inner])
    return cause_of_sum(birth, sum_of(source.values), f"the sum of {source.words}")


def of_nothing(birth: Birth, made_by: Sequence[Maker]) -> bool:
    """Return True if the reduction is over no elements.  Source: ONNX 20, the result is -inf or inf."""
    return bool(birth.inputs[0].size == 0)


def logarithm_of_empty_sum(birth: Birth, made_by: Sequence[Maker]) -> bool:
    """Return True for a Log of a sum over an empty set, which is -inf by definition (ONNX 20)."""
    maker = made_by[0] if made_by else None
    if maker is None or not maker[1] or 0 not in maker[1][0]:
        return False
    return maker[0] in ("ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2")
