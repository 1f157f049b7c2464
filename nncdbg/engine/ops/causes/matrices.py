"""Matrix products and convolutions: one element of the result as a sum of products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import product
from typing import Any

import numpy as np

from nncdbg.engine.ops.causes import Birth, Cause
from nncdbg.engine.ops.causes.numbers import EXACT, shown
from nncdbg.engine.ops.causes.places import Index, Place, element, part, spelled, spot
from nncdbg.engine.ops.causes.summing import (
    Sum,
    cause_of_number,
    cause_of_sum,
    decimal,
    sum_of,
    sum_of_products,
    zero_times_infinity,
)
from nncdbg.engine.ops.einsum_equation import einsum_terms
from nncdbg.engine.ops.windows import WindowAxis, axes_of, transposed
from nncdbg.ir.records import Array

ALL = slice(None)


@dataclass(frozen=True, slots=True)
class Dot:
    """Two vectors with a sum of products that is one element of the result, and their source."""

    a: Array
    b: Array
    words: str
    factor: float = 1
    """The factor of the sum of products: Gemm's alpha."""
    offset: float = 0
    """The added term: a bias, or Gemm's beta C."""


def cause_of_dot(birth: Birth, dot: Dot) -> Cause | None:
    """Return why the sum of products is NaN or infinite."""
    found = sum_of_products(dot.a, dot.b)
    k = found.zero_by_infinity
    if birth.kind == "nan" and k is not None:
        pair = f"{shown(float(dot.a[k]))} * {shown(float(dot.b[k]))}"
        return zero_times_infinity(f"term {k} of {dot.words} is {pair}")
    cause = cause_of_sum(birth, found, dot.words)
    if cause is not None or (dot.factor == 1 and not dot.offset):
        return cause
    if dot.factor == 0 and (found.posinf or found.neginf):
        return zero_times_infinity(f"{dot.words} is infinite, and alpha is 0")
    whole = _times(found, dot.factor) + sum_of(np.array([dot.offset], np.float64))
    return cause_of_sum(birth, whole, f"{dot.words} plus {shown(dot.offset)}")


def _times(found: Sum, factor: float) -> Sum:
    """Return the sum, multiplied by a factor."""
    if factor == 1:
        return found
    parts = [EXACT.multiply(each, decimal(factor)) for each in (found.positive, found.negative)]
    infinities = (found.posinf, found.neginf)
    if factor < 0:
        parts, infinities = parts[::-1], infinities[::-1]
    return Sum(parts[0], parts[1], infinities[0], infinities[1], found.nan)


def matmul(birth: Birth) -> Cause | None:
    a, b = birth.inputs
    rows = list(spot(birth))
    column = [rows.pop()] if b.ndim > 1 else []
    row = [rows.pop()] if a.ndim > 1 else []
    left: Place = [*_batch(a, rows), *row, ALL]
    right: Place = [*_batch(b, rows), ALL, *column]
    return cause_of_dot(birth, _dot(birth, left, right))


def _batch(matrices: Array, index: Sequence[int]) -> list[int]:
    """Return the index of an operand's matrix for a batch index of the product."""
    sizes = matrices.shape[:-2]
    lead = len(index) - len(sizes)
    return [i if size > 1 else 0 for i, size in zip(index[lead:], sizes, strict=True)]


def _dot(birth: Birth, left: Place, right: Place) -> Dot:
    a, b = birth.inputs[0][tuple(left)], birth.inputs[1][tuple(right)]
    words = f"the product of {part(birth, 0, left)} and {part(birth, 1, right)} ({a.size} terms)"
    return Dot(a, b, words)


def gemm(birth: Birth) -> Cause | None:
    i, j = spot(birth)
    attributes = birth.attributes
    left: Place = [ALL, i] if attributes["transA"] else [i, ALL]
    right: Place = [j, ALL] if attributes["transB"] else [ALL, j]
    dot = replace(_dot(birth, left, right), factor=attributes["alpha"])
    given = birth.inputs[2] if len(birth.inputs) > 2 else None
    if given is not None:
        c, beta = element(given, (i, j)), attributes["beta"]
        if beta == 0 and math.isinf(c):
            return zero_times_infinity(f"beta is 0 and {spelled(birth, 2)} contains {shown(c)}")
        dot = replace(dot, offset=c * beta)
    return cause_of_dot(birth, dot)


def einsum(birth: Birth) -> Cause | None:
    terms, right = einsum_terms(birth.attributes["equation"], len(birth.inputs))
    if any("." in term for term in terms):
        return None
    fixed = dict(zip(right, spot(birth), strict=True))
    places = [[fixed.get(letter, ALL) for letter in term] for term in terms]
    slices = [x[tuple(place)] for x, place in zip(birth.inputs, places, strict=True)]
    left = ["".join(letter for letter in term if letter not in fixed) for term in terms]
    free = "".join(sorted(set("".join(left))))
    sizes = {c: n for term, x in zip(left, slices, strict=True) for c, n in zip(term, x.shape, strict=True)}
    if math.prod(sizes.values()) > _MOST_TERMS or len(slices) > 2:
        return None
    words = " and ".join(part(birth, number, place) for number, place in enumerate(places))
    if len(slices) == 1:
        diagonal = np.einsum(f"{left[0]}->{free}", slices[0].astype(np.float64))
        return cause_of_sum(birth, sum_of(diagonal), f"the sum of {words}")
    a, b = (_spread(x, term, free, sizes) for x, term in zip(slices, left, strict=True))
    return cause_of_dot(birth, Dot(a, b, f"the sum of products of {words}"))


_MOST_TERMS = 1 << 22


def _spread(x: Array, letters: str, free: str, sizes: dict[str, int]) -> Array:
    """Return an operand of a product as a vector over all combinations of the summed letters."""
    own = "".join(letter for letter in free if letter in letters)
    ordered = np.einsum(f"{letters}->{own}", x.astype(np.float64))
    shape = [sizes[letter] if letter in letters else 1 for letter in free]
    return np.broadcast_to(ordered.reshape(shape), [sizes[letter] for letter in free]).reshape(-1)


def determinant(birth: Birth) -> Cause | None:
    index = spot(birth)
    matrix = birth.inputs[0][index].astype(np.float64)
    words = f"the determinant of {part(birth, 0, [*index, ALL, ALL])}"
    if not np.isfinite(matrix).all():
        hint = "find the op where the infinity originates"
        return Cause("infinity minus infinity", f"{words} subtracts infinities from each other", hint)
    most = float(np.abs(matrix).max(initial=0.0)) or 1.0
    _, logarithm = np.linalg.slogdet(matrix / most)
    scale = EXACT.power(decimal(most), Decimal(len(matrix)))
    size = EXACT.multiply(EXACT.exp(decimal(float(logarithm))), scale)
    return cause_of_number(birth, size, f"the size of {words}")


# Convolutions ---------------------------------------------------------------------------------


def conv(birth: Birth) -> Cause | None:
    x, weight = birth.inputs[:2]
    sample, feature, *window = spot(birth)
    axes = axes_of(birth.attributes, weight.shape[2:])
    channels = weight.shape[1]
    group = feature // (weight.shape[0] // birth.attributes["group"])
    planes = x[sample, group * channels : (group + 1) * channels]
    patch = _patch(planes, axes, window)
    where = f"window {list(window)} of {part(birth, 0, [sample])} and {part(birth, 1, [feature])}"
    dot = Dot(patch.reshape(-1), weight[feature].reshape(-1), f"the sum of products of {where}")
    return cause_of_dot(birth, _with_bias(birth, dot, feature))


def _with_bias(birth: Birth, dot: Dot, feature: int) -> Dot:
    bias = birth.inputs[2] if len(birth.inputs) > 2 else None
    return dot if bias is None else replace(dot, offset=float(bias[feature]))


def _patch(planes: Array, axes: Sequence[WindowAxis], window: Sequence[int]) -> Array:
    """Return one window [C, *kernel] over planes [C, *sizes], with 0 in the padding."""
    sizes = planes.shape[1:]
    taps = [_taps(axis, place, size) for axis, place, size in zip(axes, window, sizes, strict=True)]
    patch = np.zeros((planes.shape[0], *(axis.kernel for axis in axes)), planes.dtype)
    inside = [[k for k, i in enumerate(row) if i is not None] for row in taps]
    elements = [[i for i in row if i is not None] for row in taps]
    channels = range(planes.shape[0])
    patch[np.ix_(channels, *inside)] = planes[np.ix_(channels, *elements)]
    return patch


def _taps(axis: WindowAxis, window: int, size: int) -> list[int | None]:
    """Return the input element under each element of the kernel, None for padding."""
    start = window * axis.stride - axis.padding(size)[0]
    places = [start + k * axis.dilation for k in range(axis.kernel)]
    return [place if 0 <= place < size else None for place in places]


def window_of(birth: Birth, axes: Sequence[WindowAxis], index: Index) -> Array:
    """Return the elements of the input [N, C, *sizes] under one window of a pool, without padding."""
    sample, channel, *window = index
    plane = birth.inputs[0][sample, channel]
    taps = [_taps(axis, place, size) for axis, place, size in zip(axes, window, plane.shape, strict=True)]
    return np.asarray(plane[np.ix_(*([i for i in row if i is not None] for row in taps))])


def conv_transpose(birth: Birth) -> Cause | None:
    x, weight = birth.inputs[:2]
    sample, feature, *place = spot(birth)
    axes = axes_of(birth.attributes, weight.shape[2:])
    begins = [begin for _, begin in transposed(birth.attributes, axes, x.shape[2:])]
    rows = zip(axes, place, begins, x.shape[2:], strict=True)
    pairs = [_meeting(axis, i + begin, size) for axis, i, begin, size in rows]
    own, channels = weight.shape[1], x.shape[1] // birth.attributes["group"]
    group = slice(feature // own * channels, (feature // own + 1) * channels)
    a: list[Any] = [x[0:0, 0, ...].reshape(-1)]
    b: list[Any] = [weight[0:0, 0, ...].reshape(-1)]
    for taps in product(*pairs):
        a.append(x[(sample, group, *(i for i, _ in taps))])
        b.append(weight[(group, feature % own, *(k for _, k in taps))])
    where = f"{part(birth, 0, [sample])} and {spelled(birth, 1)} for output channel {feature}"
    dot = Dot(np.concatenate(a), np.concatenate(b), f"the sum of products of {where}")
    return cause_of_dot(birth, _with_bias(birth, dot, feature))


def _meeting(axis: WindowAxis, place: int, size: int) -> list[tuple[int, int]]:
    """Return the pairs of input and kernel elements that meet in an element of the uncropped output."""
    found = []
    for k in range(axis.kernel):
        i, rest = divmod(place - k * axis.dilation, axis.stride)
        if rest == 0 and 0 <= i < size:
            found.append((i, k))
    return found
