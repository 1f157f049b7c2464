"""Normalizations: zero variance, an overflowing sum, an infinity subtracted from itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nncdbg.engine.ops.causes import Birth, Cause
from nncdbg.engine.ops.causes.numbers import shown
from nncdbg.engine.ops.causes.places import (
    ElementRegion,
    Index,
    Place,
    at,
    element,
    infinities,
    part,
    region,
    spelled,
    spot,
)
from nncdbg.engine.ops.causes.reductions import empty_reduction
from nncdbg.engine.ops.causes.summing import (
    INFINITE,
    cause_of_number,
    cause_of_sum,
    chunks,
    decimal,
    sum_of,
    too_large,
    zero_times_infinity,
)
from nncdbg.engine.ops.precision import is_narrow
from nncdbg.engine.ops.types import normal_axes

_NEGATIVE = "check the source of the variance: rounding can make E[x^2] - E[x]^2 negative"
EPSILON = "use an epsilon above 0 (1e-5 is usual)"


def _given_epsilon(birth: Birth) -> str:
    """Return the attribute `epsilon` in words, or the argument `eps` of an operator of PyTorch."""
    given = birth.attributes
    return f"eps={given['eps']}" if "eps" in given else f"epsilon is {shown(given['epsilon'])}"


ALL = slice(None)


def _axes(birth: Birth) -> tuple[int, ...]:
    """Return the axes of the mean and the variance."""
    rank = birth.inputs[0].ndim
    match birth.op:
        case "LayerNormalization" | "RMSNormalization":
            return tuple(range(birth.attributes["axis"] % rank, rank))
        case "MeanVarianceNormalization":
            return normal_axes(birth.attributes["axes"], rank)
        case "BatchNormalization":
            return (0, *range(2, rank))
        case "LpNormalization":
            return normal_axes([birth.attributes["axis"]], rank)
    return tuple(range(2, rank))


def _source(birth: Birth, index: Index) -> ElementRegion:
    """Return the elements from which the statistics of a result element are computed."""
    axes = _axes(birth)
    return region(birth, 0, [ALL if axis in axes else i for axis, i in enumerate(index)])


def normalization(birth: Birth) -> Cause | None:
    index = spot(birth)
    affine = _affine(birth, index)
    return _standardized(birth, _source(birth, index), index, birth.attributes["epsilon"], affine)


def mean_variance(birth: Birth) -> Cause | None:
    index = spot(birth)
    return _standardized(birth, _source(birth, index), index, 1e-18, (1.0, 0.0))


def groups(birth: Birth) -> Cause | None:
    x, index = birth.inputs[0], spot(birth)
    each = x.shape[1] // birth.attributes["num_groups"]
    group = index[1] // each
    place: Place = [index[0], slice(group * each, (group + 1) * each), *[ALL] * (x.ndim - 2)]
    source = region(birth, 0, place)
    return _standardized(birth, source, index, birth.attributes["epsilon"], _affine(birth, index))


def _affine(birth: Birth, index: Index) -> tuple[float, float]:
    """Return the scale and the bias of an element of the result."""
    found = []
    for number, default in ((1, 1.0), (2, 0.0)):
        given = birth.inputs[number] if number < len(birth.inputs) else None
        if given is None or birth.index:
            found.append(default)
        elif birth.op == "LayerNormalization":
            found.append(float(element(given, index)))
        else:
            channels = birth.inputs[0].shape[1]
            found.append(float(given[index[1] * given.size // channels]))
    return found[0], found[1]


def _standardized(
    birth: Birth, source: ElementRegion, index: Index, epsilon: float, affine: tuple[float, float]
) -> Cause | None:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, of one element."""
    if not source.values.size:
        return empty_reduction(birth, 0, _axes(birth), "the mean")
    found = sum_of(source.values)
    if found.posinf or found.neginf:
        many = found.posinf + found.neginf
        evidence = f"{source.words} contains {infinities(many)}, and the mean is subtracted: inf - inf"
        return Cause("infinity minus infinity", evidence, INFINITE)
    if found.nan:
        return None
    mean = float(found.total) / source.values.size
    variance = _variance(source.values, mean)
    cause = _of_variance(birth, variance, epsilon, source, mean)
    if cause is not None:
        return cause
    overflow = _of_moments(birth, source)
    if overflow is not None or birth.index:
        return overflow
    x = float(birth.inputs[0][index])
    normal = (x - mean) / math.sqrt(variance + epsilon)
    return _of_affine(birth, normal, affine, index)


def _variance(values: Any, mean: float) -> float:
    total = 0.0
    for chunk in chunks(values):
        chunk -= mean
        total += float(chunk @ chunk)
    return total / int(values.size)


def _of_variance(
    birth: Birth, variance: float, epsilon: float, source: ElementRegion, mean: float
) -> Cause | None:
    """Return the cause if the variance is 0, or indistinguishable from 0 in the precision of the op."""
    working = np.float64 if birth.inputs[0].dtype.itemsize == 8 else np.float32
    safe = working(working(variance) + working(epsilon))
    # The mean is rounded too: values that differ from it by less than a step count as equal.
    step = float(np.spacing(working(abs(mean)))) if math.isfinite(mean) else 0.0
    if safe > 0 and (epsilon > 0 or math.sqrt(variance) > step):
        return None
    if safe < 0:
        evidence = f"the variance of {source.words} is {shown(variance)}, and {_given_epsilon(birth)}"
        return Cause("square root of a negative number", evidence, EPSILON)
    size = source.values.size
    same = (
        f"the only element of {source.words} is"
        if size == 1
        else f"all {size} elements of {source.words} are"
    )
    evidence = f"{same} {shown(mean)}: the variance is 0"
    if variance:
        evidence = f"the variance of {source.words} is {shown(variance)}, 0 in this precision"
    return Cause("zero variance", f"{evidence}, and {_given_epsilon(birth)}", EPSILON)


def _of_moments(birth: Birth, source: ElementRegion) -> Cause | None:
    """Return the cause if a sum, or a sum of squares, is too large for the type that the op computes in."""
    dtype = birth.inputs[0].dtype
    wide = Birth(
        birth.kind,
        birth.op,
        birth.opset,
        birth.attributes,
        birth.names,
        birth.inputs,
        np.zeros((), np.float32 if is_narrow(dtype) else dtype),
    )
    for power, what in ((1, "the sum"), (2, "the sum of squares")):
        cause = too_large(wide, sum_of(source.values, power), f"{what} of {source.words}")
        if cause is not None:
            return cause
    return None


def _of_affine(birth: Birth, normal: float, affine: tuple[float, float], index: Index) -> Cause | None:
    scale, bias = affine
    if normal == 0 and math.isinf(scale):
        return zero_times_infinity(f"the normalized element{at(index)} is 0, and its scale is {shown(scale)}")
    terms = np.array([normal * scale, bias], np.float64)
    words = f"{shown(normal)} * {shown(scale)} + {shown(bias)}{at(index)}"
    return cause_of_sum(birth, sum_of(terms), words)


def root_mean_square(birth: Birth) -> Cause | None:
    index, epsilon = spot(birth), birth.attributes["epsilon"]
    source = _source(birth, index)
    if not source.values.size:
        return empty_reduction(birth, 0, _axes(birth), "the mean")
    found = sum_of(source.values, 2)
    if found.posinf:
        evidence = (
            f"{source.words} contains {infinities(found.posinf)}, "
            "and is divided by its mean square: inf / inf"
        )
        return Cause("infinity divided by infinity", evidence, INFINITE)
    mean = float(found.total) / source.values.size
    working = np.float64 if birth.inputs[0].dtype.itemsize == 8 else np.float32
    safe = working(working(mean) + working(epsilon))
    if safe <= 0:
        evidence = f"the mean square of {source.words} is {shown(mean)}, and {_given_epsilon(birth)}"
        name = "zero variance" if safe == 0 else "square root of a negative number"
        return Cause(name, evidence, EPSILON)
    normal = float(birth.inputs[0][index]) / math.sqrt(mean + epsilon)
    scale = float(element(birth.inputs[1], index))
    return _of_affine(birth, normal, (scale, 0.0), index) or _of_moments(birth, source)


def power_norm(birth: Birth) -> Cause | None:
    source = _source(birth, spot(birth))
    if not np.isinf(source.values).any():
        return _of_moments(birth, source)
    evidence = f"{source.words} contains an infinity, and is divided by its norm: inf / inf"
    return Cause("infinity divided by infinity", evidence, INFINITE)


def batch(birth: Birth) -> Cause | None:
    index, attributes = spot(birth), birth.attributes
    if birth.index:
        return _running(birth, index)
    if attributes.get("training_mode", 0):
        return _trained(birth, index)
    cause = _of_running_statistics(birth, index)
    if cause is None and birth.opset < 14:
        return _trained(birth, index)  # The number of outputs of the statement decides whether it trains.
    return cause


def _trained(birth: Birth, index: Index) -> Cause | None:
    affine = _affine(birth, index)
    return _standardized(birth, _source(birth, index), index, birth.attributes["epsilon"], affine)


def _running(birth: Birth, index: Index) -> Cause | None:
    """The cause in the mean or the variance of a batch."""
    source = region(birth, 0, [ALL, *index, *[ALL] * (birth.inputs[0].ndim - 2)])
    if not source.values.size:
        return empty_reduction(birth, 0, _axes(birth), "the mean")
    found = sum_of(source.values)
    if found.posinf or found.neginf:
        evidence = f"{source.words} contains {infinities(found.posinf + found.neginf)}"
        return Cause("infinity minus infinity", evidence, INFINITE)
    variance = _variance(source.values, float(found.total) / source.values.size)
    words = f"the variance of {source.words}"
    return _of_moments(birth, source) or cause_of_number(birth, decimal(variance), words)


def _of_running_statistics(birth: Birth, index: Index) -> Cause | None:
    channel, epsilon = index[1], birth.attributes["epsilon"]
    number = float(birth.inputs[0][index])
    given = zip(birth.inputs[1:5], (1.0, 0.0, 0.0, 1.0), strict=True)
    scale, bias, mean, variance = (usual if x is None else _by_channel(x, index) for x, usual in given)
    name = part(birth, 4, [channel])
    working = np.float64 if birth.inputs[0].dtype.itemsize == 8 else np.float32
    safe = float(working(working(variance) + working(epsilon)))
    if safe <= 0:
        evidence = f"{name} is {shown(variance)}, and {_given_epsilon(birth)}"
        if variance < 0:
            return Cause("square root of a negative number", evidence, _NEGATIVE)
        cause = "zero variance" if safe == 0 else "square root of a negative number"
        return Cause(cause, evidence, EPSILON)
    factor = scale / math.sqrt(safe)
    for a, b, words in ((number, factor, spelled(birth, 0)), (mean, factor, spelled(birth, 3))):
        if (a == 0 and math.isinf(b)) or (b == 0 and math.isinf(a)):
            return zero_times_infinity(f"{words}{at(index)} is {shown(a)}, and its factor is {shown(b)}")
    terms = np.array([number * factor, bias, -mean * factor], np.float64)
    words = f"{shown(number)} * {shown(factor)} + {shown(bias)} - {shown(mean)} * {shown(factor)}{at(index)}"
    return cause_of_sum(birth, sum_of(terms), words) or _factor(birth, factor, name)


def _by_channel(parameter: Any, index: Sequence[int]) -> float:
    """Return a parameter of the channel, or of the position in a sample if it has that shape (opset 7)."""
    return float(parameter[index[1]] if parameter.ndim == 1 else parameter[tuple(index[1:])])


def _factor(birth: Birth, factor: float, name: str) -> Cause | None:
    if not math.isfinite(factor):
        return None
    return cause_of_number(birth, decimal(factor), f"the scale over the root of {name}")
