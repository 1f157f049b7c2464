"""Softmax, LogSoftmax and Hardmax.

Before opset 13 they operate on a matrix: all axes from `axis` on are its rows.  A line that contains NaN is
NaN throughout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from nncdbg.engine.ops import contracts, remarks
from nncdbg.engine.ops import valid_integers as valid
from nncdbg.engine.ops.declaration import Formula, Kernel, op
from nncdbg.engine.ops.formula import sizes_at, wide_formula
from nncdbg.engine.ops.gradient import Applied, Emit, cast_like, nothing
from nncdbg.engine.ops.gradient import softmax as gradient
from nncdbg.engine.ops.influence import Content, Infinities, along, probed
from nncdbg.engine.ops.precision import settled, widened
from nncdbg.engine.ops.types import Attributes, Types, at, normal_axis, shape_at, typed
from nncdbg.errors import GraphError
from nncdbg.ir.records import Dim, Literal, Operand


def along_axis_types(attributes: Attributes, inputs: Types) -> Types:
    """The type of the input; the axis must exist."""
    shape = shape_at(inputs, 0)
    if shape is not None:
        normal_axis(attributes["axis"], max(len(shape), 1))
    return [at(inputs, 0)]


def flattening_types(attributes: Attributes, inputs: Types) -> Types:
    """The type of the input; before opset 13 the axis may be one past the last."""
    shape = shape_at(inputs, 0)
    if shape is not None and attributes["axis"] != len(shape):
        normal_axis(attributes["axis"], max(len(shape), 1))
    return [at(inputs, 0)]


def rows_of(shape: tuple[int, ...], axis: int) -> tuple[int, int]:
    """Return the sizes of the matrix with all axes from `axis` on in its rows, as before opset 13."""
    first = axis % len(shape) if axis < 0 else axis
    return math.prod(shape[:first]), math.prod(shape[first:])


def softmax_lines(source: str, target: str, axis: int, *, log: bool) -> list[str]:
    lines = [
        f"%max = ReduceMax({source}, [{axis}])",
        f"%shifted = Sub({source}, %max)",
        "%exp = Exp(%shifted)",
        f"%sum = ReduceSum(%exp, [{axis}])",
    ]
    if log:
        return [*lines, "%log = Log(%sum)", f"{target} = Sub(%shifted, %log)"]
    return [*lines, f"{target} = Div(%exp, %sum)"]


def softmax_formula(*, log: bool = False, flatten: bool = False) -> Formula:
    """Return the formula of Softmax or LogSoftmax; `flatten`: over matrix rows, as before opset 13."""

    def formula(attributes: Attributes, inputs: Types) -> str:
        axis = attributes["axis"]
        if flatten:
            shape = sizes_at(inputs, 0)
            matrix = list(rows_of(shape, axis))
            lines = [
                f"%rows = Reshape(%x.wide, {matrix})",
                *softmax_lines("%rows", "%result", 1, log=log),
                f"%y.wide = Reshape(%result, {list(shape)})",
            ]
        else:
            lines = softmax_lines("%x.wide", "%y.wide", axis, log=log)
        return wide_formula("Softmax", ["x"], inputs, lines)

    return formula


def _of_rows(name: str, kernel: Kernel, **facts: Any) -> None:
    """Declare an op before opset 13, which runs over a matrix."""

    def of_rows(xp: ModuleType, x: Any, *, axis: int) -> Any:
        return kernel(xp, x.reshape(rows_of(x.shape, axis)), axis=1).reshape(x.shape)

    of_rows.__doc__ = f"{name} of the matrix with all axes from `axis` on in its rows."
    influence = along(rest=True).taking(Infinities.ABSORBED)
    op(name, since=1, infer=flattening_types, influence=influence, **facts)(of_rows)


@op(
    "Softmax",
    since=13,
    infer=along_axis_types,
    accepts_out=True,
    formula=softmax_formula(),
    vjp=gradient(),
    influence=along().taking(Infinities.ABSORBED),
    shares=np.asarray,
    bounds=(0.0, 1.0),
    cause="layers.softmax",
    remark=remarks.softmax,
    zeros="pointwise.exponential_underflow",
)
def softmax(xp: ModuleType, x: Any, *, axis: int, out: Any = None) -> Any:
    """exp(x) over its sum along `axis`, shifted by the maximum to avoid overflow."""
    wide = widened(xp, x)
    target = out if out is not None and out.dtype == wide.dtype else xp.empty(wide.shape, wide.dtype)
    if wide.size:
        xp.subtract(wide, wide.max(axis=axis, keepdims=True), out=target)
        xp.exp(target, out=target)
        xp.divide(target, target.sum(axis=axis, keepdims=True), out=target)
    return settled(xp, target, x.dtype, out)


_of_rows("Softmax", softmax, formula=softmax_formula(flatten=True), vjp=gradient(flatten=True))


@op(
    "LogSoftmax",
    since=13,
    infer=along_axis_types,
    accepts_out=True,
    formula=softmax_formula(log=True),
    vjp=gradient(log=True),
    influence=along().taking(Infinities.ABSORBED),
    shares=np.exp,
    cause="layers.softmax",
    remark=remarks.log_softmax,
)
def log_softmax(xp: ModuleType, x: Any, *, axis: int, out: Any = None) -> Any:
    """log(Softmax(x)) along `axis`, computed without the quotient."""
    wide = widened(xp, x)
    if not wide.size:
        return settled(xp, wide, x.dtype, out)
    shifted = wide - wide.max(axis=axis, keepdims=True)
    total = xp.log(xp.exp(shifted).sum(axis=axis, keepdims=True))
    return settled(xp, shifted - total, x.dtype, out)


_of_rows(
    "LogSoftmax",
    log_softmax,
    formula=softmax_formula(log=True, flatten=True),
    vjp=gradient(log=True, flatten=True),
)


@op(
    "Hardmax",
    since=13,
    infer=along_axis_types,
    vjp=nothing,
    influence=along().taking(Infinities.ABSORBED),
    jumps=True,
    content=Content.BOUNDED,
    shares=np.asarray,
)
def hardmax(xp: ModuleType, x: Any, *, axis: int) -> Any:
    """1 at the first maximum along `axis`, 0 elsewhere; NaN throughout a line that contains NaN."""
    if not x.size:
        return x
    best = xp.expand_dims(widened(xp, x).argmax(axis=axis), axis)
    places = xp.arange(x.shape[axis]).reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
    spoiled = (x != x).any(axis=axis, keepdims=True)
    return xp.where(spoiled, x.dtype.type(math.nan), (places == best).astype(x.dtype))


_of_rows("Hardmax", hardmax, vjp=nothing, jumps=True)


def _loss_types(attributes: Attributes, types: Types) -> Types:
    shape: tuple[Dim, ...] | None = ()
    if attributes["reduction"] == "none":
        shape = shape_at(types, 1)
    return (typed(at(types, 0), shape),)


def _loss(xp: Any, log_prob: Any, target: Any, weight: Any, ignore_index: int | None, reduction: str) -> Any:
    """Return the loss of log probabilities [N, C, ...] at classes [N, ...], in the type of `log_prob`."""
    if weight is None and ignore_index is None:
        losses = -xp.take_along_axis(log_prob, xp.expand_dims(target, 1), axis=1).squeeze(1)
        total = xp.asarray(losses.size, dtype=log_prob.dtype)
    else:
        ignored = xp.zeros(target.shape, bool) if ignore_index is None else target == ignore_index
        classes = xp.where(ignored, 0, target)
        picked = xp.take_along_axis(log_prob, xp.expand_dims(classes, 1), axis=1).squeeze(1)
        weights = xp.ones(log_prob.shape[1], log_prob.dtype) if weight is None else weight
        each = xp.where(ignored, log_prob.dtype.type(0), weights[classes])
        losses = xp.where(ignored, log_prob.dtype.type(0), -picked * each)
        total = each.sum()
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    if reduction == "mean":
        return losses.sum() / total
    raise GraphError(f"unknown reduction {reduction!r}", hint="use none, sum or mean", attribute="reduction")


@op(
    "NegativeLogLikelihoodLoss",
    since=12,
    infer=_loss_types,
    integers=valid.class_labels,
    contract=contracts.classes,
    influence=probed(0, 2),
    cause="layers.negative_log_likelihood",
)
def negative_log_likelihood_loss(
    xp: Any, log_prob: Any, target: Any, weight: Any = None, *, ignore_index: int | None, reduction: str
) -> Any:
    """-weight[target] * log_prob at `target`, summed, or averaged over the weights.

    `log_prob` is [N, C, ...], `target` [N, ...], `weight` [C].  ONNX NegativeLogLikelihoodLoss since 12.
    """
    loss = _loss(xp, widened(xp, log_prob), target, widened(xp, weight), ignore_index, reduction)
    return settled(xp, loss, log_prob.dtype)


def _cross_entropy_vjp(emit: Emit, at: Applied) -> Sequence[Operand] | None:
    """(softmax - one-hot) times the cotangent of each sample; other forms are left to the formula."""
    known, labels = emit.type_of(at.x), at.operands[1]
    classes = known.shape[1] if known is not None and known.shape is not None else None
    other_form = at.operand(2) is not None or at.attributes["ignore_index"] is not None
    if other_form or at.cotangents[0] is None or at.cotangents[1:] not in ((), (None,)):
        return None
    if not isinstance(classes, int):
        return None
    ends = emit("CastLike", Literal((0.0, 1.0)), at.x)
    hot = emit("OneHot", labels, Literal(classes), ends, axis=1)
    difference = emit("Sub", emit("Softmax", at.x, axis=1), hot)
    each: Operand = at.d
    if at.attributes["reduction"] == "mean":
        each = emit("Div", at.d, cast_like(emit, emit("Size", labels), at.x))
    elif at.attributes["reduction"] == "none":
        each = emit("Unsqueeze", at.d, Literal((1,)))
    return (emit("Mul", difference, each),)


@op(
    "SoftmaxCrossEntropyLoss",
    since=12,
    infer=lambda attributes, types: (*_loss_types(attributes, types), at(types, 0)),
    vjp=_cross_entropy_vjp,
    outputs_count=True,
    integers=valid.class_labels,
    contract=contracts.classes,
    influence=probed(0, 2).taking(Infinities.ABSORBED),
    cause="layers.cross_entropy",
)
def softmax_cross_entropy_loss(
    xp: Any,
    scores: Any,
    labels: Any,
    weights: Any = None,
    *,
    ignore_index: int | None,
    reduction: str,
    outputs_count: int,
) -> Any:
    """The negative log likelihood loss of LogSoftmax(scores), and LogSoftmax(scores) itself.

    ONNX SoftmaxCrossEntropyLoss since 12.
    """
    log_prob = log_softmax(xp, widened(xp, scores), axis=1)
    loss = settled(
        xp, _loss(xp, log_prob, labels, widened(xp, weights), ignore_index, reduction), scores.dtype
    )
    return (loss, settled(xp, log_prob, scores.dtype)) if outputs_count > 1 else loss
