"""PyTorch's products, normalizations and attention by the rules of the ops with the same formula."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from nncdbg.engine.ops.causes import Birth, Cause, matrices, normalization, softmax
from nncdbg.engine.ops.causes.torch_operands import as_op


def mm(birth: Birth) -> Cause | None:
    return matrices.matmul(as_op(birth, "MatMul", list(birth.inputs[:2])))


def addmm(birth: Birth) -> Cause | None:
    alpha, beta = (birth.attributes.get(key) for key in ("alpha", "beta"))
    names = [*birth.names[1:3], *birth.names[:1]]
    swapped = replace(birth, names=names)
    return matrices.gemm(
        as_op(
            swapped,
            "Gemm",
            [birth.inputs[1], birth.inputs[2], birth.inputs[0]],
            transA=0,
            transB=0,
            alpha=1.0 if alpha is None else float(alpha),
            beta=1.0 if beta is None else float(beta),
        )
    )


def convolution(birth: Birth) -> Cause | None:
    given = birth.attributes
    weight = birth.inputs[1]
    rank = weight.ndim - 2
    if given.get("transposed"):
        return None
    strides, padding, dilations = (
        list(given[key]) if len(given[key]) == rank else list(given[key]) * rank
        for key in ("stride", "padding", "dilation")
    )
    return matrices.conv(
        as_op(
            birth,
            "Conv",
            strides=strides,
            pads=padding * 2,
            dilations=dilations,
            group=given["groups"],
            auto_pad="NOTSET",
            kernel_shape=list(weight.shape[2:]),
        )
    )


def softmax_row(birth: Birth) -> Cause | None:
    return softmax.softmax(as_op(birth, "Softmax", list(birth.inputs[:1]), axis=birth.attributes["dim"]))


def attention(birth: Birth) -> Cause | None:
    """Fused attention with a mask that excludes every key."""
    mask = next((each for each in birth.inputs[3:5] if each is not None), None)
    if birth.kind != "nan" or mask is None or mask.ndim < 2:
        return None
    closed = np.asarray((~mask if mask.dtype == np.bool_ else mask == -math.inf).all(axis=-1))
    if not closed.any():
        return None
    rows = f"{int(closed.sum())} of {closed.size} rows of the mask exclude every key"
    return Cause("fully masked row", rows, softmax.MASKED)


def _epsilon(birth: Birth) -> dict[str, Any]:
    """Return the argument `eps` under the names of both libraries: evidence has the one of PyTorch."""
    return {"epsilon": birth.attributes["eps"], "eps": birth.attributes["eps"]}


def layer_norm(birth: Birth) -> Cause | None:
    axis = birth.inputs[0].ndim - len(birth.attributes["normalized_shape"])
    named = as_op(birth, "LayerNormalization", axis=axis, **_epsilon(birth))
    return normalization.normalization(named)


def group_norm(birth: Birth) -> Cause | None:
    x = birth.inputs[0]
    groups = birth.attributes["group"]
    named = as_op(birth, "GroupNormalization", num_groups=groups, **_epsilon(birth))
    if x.ndim < 3:
        named = replace(named, inputs=[x[..., None], *birth.inputs[1:]], output=birth.output[..., None])
    return normalization.groups(named)


def batch_norm(birth: Birth) -> Cause | None:
    training = birth.attributes.get("training", birth.op.startswith("aten._native_batch_norm_legit.no_stats"))
    named = as_op(birth, "BatchNormalization", training_mode=int(bool(training)), **_epsilon(birth))
    return normalization.batch(replace(named, index=0)) if birth.index == 0 else None
