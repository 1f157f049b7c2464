"""Causes in sums and products of many elements: reductions, matrix products, convolutions and pools."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np

from nncdbg.dtypes import name_of
from nncdbg.engine.ops.causes import Birth, Cause, Maker
from nncdbg.engine.ops.causes.evidence import (
    EXACT,
    INFINITE,
    ElementRegion,
    Index,
    Place,
    Sum,
    at,
    cause_of_number,
    cause_of_sum,
    chunks,
    decimal,
    element,
    ends,
    infinities,
    largest,
    many,
    overflow_hint,
    part,
    region,
    shown,
    spelled,
    spot,
    sum_of,
    sum_of_products,
    too_large,
    zero_times_infinity,
)
from nncdbg.engine.ops.declaration import CauseRule
from nncdbg.engine.ops.pooling import divisors
from nncdbg.engine.ops.types import einsum_terms, normal_axes, normal_axis
from nncdbg.engine.ops.windows import WindowAxis, axes_of, transposed
from nncdbg.ir.records import Array


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


PADDING = "use less padding, so that each window contains an element; count_include_pad=1 counts the padding"


def window(birth: Birth) -> Cause | None:
    index, x = spot(birth), birth.inputs[0]
    axes = axes_of(birth.attributes, birth.attributes["kernel_shape"])
    sample, channel, *window = index
    plane = birth.inputs[0][sample, channel]
    taps = [_taps(axis, place, size) for axis, place, size in zip(axes, window, plane.shape, strict=True)]
    values = np.asarray(plane[np.ix_(*([i for i in row if i is not None] for row in taps))])
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
    single = Sum(positive=exact) if exact > 0 else Sum(negative=exact)
    cause = too_large(birth, single, f"{shown(x)} over {shown(divisor)}{at(index)}")
    return cause or too_large(birth, squares, f"the sum of squares of {where}")
