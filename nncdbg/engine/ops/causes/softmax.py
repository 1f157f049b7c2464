"""Softmax and LogSoftmax, and the losses that use their results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nncdbg.engine.ops.causes import Birth, Cause, Maker
from nncdbg.engine.ops.causes.arithmetic import bracketed
from nncdbg.engine.ops.causes.numbers import EXACT, shown
from nncdbg.engine.ops.causes.places import (
    Index,
    Place,
    at,
    count,
    first,
    many,
    part,
    spelled,
    spot,
    under,
)
from nncdbg.engine.ops.causes.summing import (
    CHUNK,
    INFINITE,
    cause_of_number,
    cause_of_sum,
    decimal,
    sum_of,
    zero_times_infinity,
)
from nncdbg.engine.ops.softmax import rows_of
from nncdbg.ir.records import Array

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
