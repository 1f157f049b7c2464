"""The losses of ONNX: negative log likelihood, and cross entropy based on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nncdbg.engine.errors import GraphError
from nncdbg.engine.ops import contracts
from nncdbg.engine.ops import valid_integers as valid
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.gradient import Applied, Emit, cast_like
from nncdbg.engine.ops.influence import Infinities, probed
from nncdbg.engine.ops.precision import settled, widened
from nncdbg.engine.ops.types import Attributes, Types, at, shape_at, typed
from nncdbg.ir.records import Dim, Literal, Operand


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
    cause="softmax.negative_log_likelihood",
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


def _cross_entropy_types(attributes: Attributes, types: Types) -> Types:
    return (*_loss_types(attributes, types), at(types, 0))


@op(
    "SoftmaxCrossEntropyLoss",
    since=12,
    infer=_cross_entropy_types,
    vjp=_cross_entropy_vjp,
    outputs_count=True,
    integers=valid.class_labels,
    contract=contracts.classes,
    influence=probed(0, 2).taking(Infinities.ABSORBED),
    cause="softmax.cross_entropy",
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
    wide = widened(xp, scores)
    shifted = wide - wide.max(axis=1, keepdims=True)
    log_prob = shifted - xp.log(xp.exp(shifted).sum(axis=1, keepdims=True))
    loss = settled(
        xp, _loss(xp, log_prob, labels, widened(xp, weights), ignore_index, reduction), scores.dtype
    )
    return (loss, settled(xp, log_prob, scores.dtype)) if outputs_count > 1 else loss
