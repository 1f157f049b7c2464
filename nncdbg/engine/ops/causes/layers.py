"""Causes in normalizations, softmax, losses, attention, recurrent layers and optimizers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nncdbg.engine.ops.causes import Birth, Cause, Maker
from nncdbg.engine.ops.causes.evidence import (
    CHUNK,
    EXACT,
    INFINITE,
    ElementRegion,
    Index,
    Place,
    at,
    cause_of_number,
    cause_of_sum,
    chunks,
    count,
    counted,
    decimal,
    element,
    first,
    infinities,
    many,
    part,
    region,
    shown,
    spelled,
    spot,
    sum_of,
    too_large,
    under,
    zero_times_infinity,
)
from nncdbg.engine.ops.causes.pointwise import bracketed
from nncdbg.engine.ops.causes.sums import empty_reduction
from nncdbg.engine.ops.declaration import CauseRule
from nncdbg.engine.ops.precision import is_narrow, widened
from nncdbg.engine.ops.softmax import rows_of
from nncdbg.engine.ops.types import normal_axes
from nncdbg.ir.records import Array

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


def _safe(birth: Birth, variance: float, epsilon: float) -> Any:
    """Return variance + epsilon, rounded as in the op."""
    working = np.float64 if birth.inputs[0].dtype.itemsize == 8 else np.float32
    return working(working(variance) + working(epsilon))


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
    safe = _safe(birth, variance, epsilon)
    # The mean is rounded too: values that differ from it by less than a step count as equal.
    step = float(np.spacing(type(safe)(abs(mean)))) if math.isfinite(mean) else 0.0
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
    wide = replace(birth, output=np.zeros((), np.float32 if is_narrow(dtype) else dtype))
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
    safe = _safe(birth, mean, epsilon)
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
        return normalization(birth)
    cause = _of_running_statistics(birth, index)
    if cause is None and birth.opset < 14:
        return normalization(birth)  # The number of outputs of the statement decides whether it trains.
    return cause


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
    scale, bias, mean, variance = (
        usual if x is None else float(x[index[1]] if x.ndim == 1 else x[tuple(index[1:])])
        for x, usual in given
    )
    name = part(birth, 4, [channel])
    safe = float(_safe(birth, variance, epsilon))
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
    of_terms = cause_of_sum(birth, sum_of(terms), words)
    if of_terms is not None or not math.isfinite(factor):
        return of_terms
    return cause_of_number(birth, decimal(factor), f"the scale over the root of {name}")


MASKED = (
    "leave one element of each row unmasked, mask with -1e4 instead of -inf, "
    "or replace padding rows with Where"
)


def softmax(birth: Birth) -> Cause | None:
    x, index = birth.inputs[0], spot(birth)
    axis = birth.attributes["axis"]
    if birth.opset < 13:
        matrix = rows_of(x.shape, axis)
        x, index, axis = x.reshape(matrix), _row(index, x.shape, matrix), 1
    return cause_of_row(birth, x, axis % max(x.ndim, 1), index)


def _row(index: Index, shape: tuple[int, ...], matrix: tuple[int, int]) -> Index:
    place = np.unravel_index(np.ravel_multi_index(index, shape), matrix)
    return tuple(int(i) for i in place)


def cause_of_row(birth: Birth, scores: Array, axis: int, index: Index) -> Cause | None:
    """Return why the softmax of the first operand, viewed as `scores`, is bad in the row of an index."""
    if not scores.ndim:
        scores, index = scores.reshape(1), (0,)
    place = [slice(None) if i == axis else k for i, k in enumerate(index)]
    row = scores[tuple(place)].astype(np.float64)
    if birth.kind == "nan":
        return _not_a_number(birth, scores, axis, row, index)
    if not np.isfinite(row).all():
        return None
    top = float(row.max())
    lowest = EXACT.subtract(decimal(float(row.min())), decimal(top))
    apart = f"{shown(float(row.min()))} - {bracketed(top)}"
    words = f"the scores of the row{at(index)} are too far apart: {apart}"
    return cause_of_number(birth, lowest, words)


def _not_a_number(birth: Birth, scores: Array, axis: int, row: Array, index: Index) -> Cause | None:
    name = spelled(birth, 0)
    if (row == -math.inf).all():
        masked = (scores == -math.inf).all(axis=axis)
        where = f", the first is {list(first(masked))}" if masked.ndim else ""
        rows = f"{count(masked)} of {masked.size} rows of {name} along axis {axis} contain only -inf{where}"
        return Cause("fully masked row", rows, MASKED)
    if (row == math.inf).any():
        evidence = f"the row of {name}{at(index)} contains inf, and the maximum is subtracted: inf - inf"
        return Cause("infinity minus infinity", evidence, INFINITE)
    return None


# Losses ---------------------------------------------------------------------------------------


def cross_entropy(birth: Birth) -> Cause | None:
    scores = birth.inputs[0]
    if birth.index == 1:
        return cause_of_row(birth, scores, 1, spot(birth))
    picked, weights = _picked(birth)
    if weights is None:
        return None
    wide = np.moveaxis(scores, 1, -1).reshape(-1, scores.shape[1])
    masked = (wide == -math.inf).all(axis=1)
    if birth.kind == "nan" and masked.any():
        evidence = f"{count(masked)} of {masked.size} rows of {spelled(birth, 0)} contain only -inf"
        return Cause("fully masked row", f"{evidence}, the first is {int(masked.argmax())}", MASKED)
    if birth.kind == "nan" and (wide == math.inf).any():
        where = int((wide == math.inf).any(axis=1).argmax())
        evidence = (
            f"row {where} of {spelled(birth, 0)} contains inf, and the maximum is subtracted: inf - inf"
        )
        return Cause("infinity minus infinity", evidence, INFINITE)
    return cause_of_loss(birth, picked - _normal(wide).reshape(picked.shape), weights)


def _normal(rows: Array) -> Array:
    """Return log(sum(exp(row))) of each row in f64, computed some rows at a time."""
    step = max(CHUNK // max(rows.shape[1], 1), 1)
    parts = []
    for begin in range(0, len(rows), step):
        wide = rows[begin : begin + step].astype(np.float64)
        top = wide.max(axis=1, keepdims=True)
        parts.append(top[:, 0] + np.log(np.exp(wide - top).sum(axis=1)))
    return np.concatenate(parts)


def negative_log_likelihood(birth: Birth) -> Cause | None:
    picked, weights = _picked(birth)
    return None if weights is None else cause_of_loss(birth, picked, weights)


def _picked(birth: Birth) -> tuple[Array, Any]:
    """Return the scores [N, ...] at the targets, and their weights; no weights if a target is invalid."""
    scores, targets = birth.inputs[:2]
    given = birth.inputs[2] if len(birth.inputs) > 2 else None
    ignored = targets == birth.attributes["ignore_index"]
    classes = np.where(ignored, 0, targets)
    chosen = np.take_along_axis(scores, np.expand_dims(classes, 1), axis=1).squeeze(1).astype(np.float64)
    weights = np.ones(classes.shape) if given is None else given.astype(np.float64)[classes]
    return chosen, np.where(ignored, 0.0, weights)


def cause_of_loss(birth: Birth, picked: Array, weights: Array) -> Cause | None:
    """Return why the mean or the sum of -weights * picked is bad."""
    reduction, targets = birth.attributes["reduction"], spelled(birth, 1)
    ignored = birth.inputs[1] == birth.attributes["ignore_index"]
    if reduction == "mean" and not weights.sum():
        hint = 'use reduction="sum" with your own divisor, or skip such a batch'
        evidence = f"the weights of all classes in {targets} add up to 0"
        if ignored.all():
            ones = many(ignored.size, "element")
            evidence = f"all targets in {targets} are ignore_index ({ones}): the mean of no elements is 0 / 0"
        return Cause("zero divided by zero", evidence, hint)
    spoilt = (weights == 0) & np.isinf(picked) & ~ignored
    if birth.kind == "nan" and spoilt.any():
        where = first(spoilt)
        return zero_times_infinity(f"weight 0 times {shown(picked[where])}{at(where)}")
    with np.errstate(invalid="ignore", over="ignore"):
        terms = np.where(ignored, 0.0, -picked * weights)
    if reduction == "none":
        return cause_of_sum(birth, sum_of(terms[spot(birth)]), f"the loss{at(spot(birth))}")
    return cause_of_sum(birth, sum_of(terms), "the sum of the losses")


# Attention ------------------------------------------------------------------------------------


def attention(birth: Birth) -> Cause | None:
    """The cause if the mask excludes every key of a row; ONNX's function body gives all other causes."""
    mask = birth.inputs[3] if len(birth.inputs) > 3 else None
    if birth.kind != "nan" or mask is None or birth.index:
        return None
    closed = ~mask if mask.dtype == np.bool_ else mask == -math.inf
    rows = np.asarray(closed.all(axis=-1))
    query = under(rows, _query(birth))
    if not rows[query] or not mask.shape[-1]:
        return None
    where: Place = [*query, slice(None)]
    evidence = f"{part(birth, 3, where)} masks every key, as {count(rows)} of {rows.size} rows do"
    return Cause("fully masked row", evidence, MASKED)


def _query(birth: Birth) -> Index:
    """Return batch, head and query of the first bad element; with three axes the heads are side by side."""
    index = spot(birth)
    if len(index) == 4:
        return index[:3]
    sizes = birth.output.shape[2] // birth.attributes["q_num_heads"]
    return index[0], index[2] // sizes, index[1]


def masked_scores(birth: Birth, made_by: Sequence[Maker]) -> bool:
    """Return True if result 3 of an Attention, the masked scores, has only infinities of the mask."""
    if birth.index != 3:
        return False
    mask = birth.inputs[3] if len(birth.inputs) > 3 else None
    lengths = birth.inputs[6] if len(birth.inputs) > 6 else None
    given = mask is not None and mask.dtype == np.bool_
    masks = given or lengths is not None or bool(birth.attributes.get("is_causal"))
    return masks and not bool((birth.output == np.inf).any())


def recurrent(birth: Birth) -> Cause | None:
    """The cause if infinities are in the products of x with W or of the initial state with R."""
    if birth.kind != "nan":
        return None
    for states, weights in ((0, 1), (5, 2)):
        a: Any = birth.inputs[states] if states < len(birth.inputs) else None
        b: Any = birth.inputs[weights]
        if a is None or not (np.isinf(a).any() or np.isinf(b).any()):
            continue
        words = f"{spelled(birth, states)} and {spelled(birth, weights)}"
        if _meet(a, b) or _meet(b, a):
            return zero_times_infinity(f"in the products of {words} an infinity is multiplied by 0")
        evidence = f"in the products of {words} infinities of both signs are added"
        return Cause("infinity minus infinity", evidence, INFINITE)
    return None


def _meet(a: Array, b: Array) -> bool:
    """Return True if `b` has a 0 in a feature (the last axis) where `a` has an infinity."""
    features = np.isinf(a).reshape(-1, a.shape[-1]).any(axis=0)
    return bool((b[..., features] == 0).any())


def _optimizer(operands: int) -> CauseRule:
    """Return the rule of an optimizer with `operands` per tensor, which takes the root of its last state.

    Its operands are R, T, then per tensor x, its gradient and the states; the last is a sum of squares.
    """

    def rule(birth: Birth) -> Cause | None:
        if birth.kind != "nan":
            return None
        tensors = (len(birth.inputs) - 2) // operands
        for number in range(len(birth.inputs) - tensors, len(birth.inputs)):
            state: Any = birth.inputs[number]
            if (state < 0).any():
                evidence = counted(birth, number, state < 0, "negative")
                hint = "a sum of squares is never negative: check how this state is initialized or loaded"
                return Cause("square root of a negative number", evidence, hint)
        return None

    return rule


adagrad, adam = _optimizer(3), _optimizer(4)


def adaptive(birth: Birth) -> Cause | None:
    """The cause in Adam, AdamW and LAMB, whose operands are parameter, gradient, two moments and step."""
    if birth.index:
        return None
    if int(birth.inputs[4]) == -1:
        evidence = f"{spelled(birth, 4)} is -1, so that both bias corrections 1 - beta ** 0 are 0"
        return Cause(
            "division by zero", evidence, "set the step to the number of earlier updates, 0 at first"
        )
    gradient = birth.inputs[1]
    if birth.op == "nncdbg.Adam":
        gradient = _regularized(birth)
    return _of_root(birth, 3, _averaged(birth, 3, gradient * gradient, birth.attributes["beta2"]))


def root_of_moving_mean(birth: Birth) -> Cause | None:
    """The cause in RMSProp, whose operands are parameter, gradient, mean of squares, mean and velocity."""
    centered = len(birth.inputs) > 3 and birth.inputs[3] is not None
    if 1 <= birth.index <= 1 + centered:
        return None
    gradient, alpha = _regularized(birth), birth.attributes["alpha"]
    variance = _averaged(birth, 2, gradient * gradient, alpha)
    if centered:
        variance = variance - _averaged(birth, 3, gradient, alpha) ** 2
    return _of_root(birth, 2, variance)


def _regularized(birth: Birth) -> Any:
    parameter, gradient = (widened(np, each) for each in birth.inputs[:2])
    return gradient + parameter * birth.attributes["weight_decay"]


def _averaged(birth: Birth, state: int, x: Any, beta: float) -> Any:
    """Return the new moving average of `x`, in the type that the op computes in."""
    return widened(np, birth.inputs[state]) * beta + widened(np, x) * (1 - beta)


def _of_root(birth: Birth, squares: int, variance: Any) -> Cause | None:
    """The gradient or its mean, divided by the root of `variance` plus epsilon.

    In LAMB each element of the result depends on the norm of all quotients.
    """
    suspects = np.ones_like(variance, bool)
    if birth.op != "nncdbg.LAMB":
        suspects = np.zeros_like(suspects)
        suspects[spot(birth)] = True
    negative = suspects & (variance < 0)
    if negative.any():
        return _negative(birth, squares, variance, negative)
    zero = suspects & (variance == 0)
    if birth.attributes["epsilon"] or not zero.any():
        return None
    index = first(zero)
    terms = (
        f"{spelled(birth, i)}{at(index)} is {shown(element(birth.inputs[i], index))}" for i in (1, squares)
    )
    evidence = f"{' and '.join(terms)}: the new mean of squares is 0 in {variance.dtype}, and epsilon is 0"
    name = "zero divided by zero" if birth.kind == "nan" else "division by zero"
    return Cause(name, evidence, "use epsilon above 0 (1e-8 is usual)")


def _negative(birth: Birth, squares: int, variance: Any, negative: Any) -> Cause:
    given = birth.inputs[squares] < 0
    if given.any():
        evidence = f"{counted(birth, squares, given, 'negative')}; a mean of squares cannot be"
        hint = f"start with {spelled(birth, squares)} of 0, and pass it on without changes"
    else:
        index = first(negative)
        evidence = (
            f"the mean of squares minus the square of the mean{at(index)} is {shown(float(variance[index]))}"
        )
        hint = "use RMSProp without the operand mean, or f64: rounding makes the difference negative"
    return Cause("square root of a negative number", evidence, hint)
