"""Infinities that are meant: constants, and the neutral elements of reductions over nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from nncdbg.engine.diagnosis.cause import Birth

Maker: TypeAlias = "tuple[str, Sequence[tuple[int, ...]]] | None"
"""The op that made an operand, and the shapes of that op's own operands."""

_CONSTANTS = frozenset({"Constant", "ConstantOfShape", "nncdbg.FullLike"})
_NEUTRAL = frozenset({"ReduceMax", "ReduceMin", "ReduceLogSum", "ReduceLogSumExp"})
_SUMS = frozenset({"ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2"})


def legal(birth: Birth, made_by: Sequence[Maker]) -> bool:
    """Whether the infinities of a birth are legal by definition.

    `made_by` tells of each operand which op made it, where that is known.  Source: the documents of
    the reductions in ONNX 20: over an empty set they give -inf, inf, or the logarithm of 0.
    """
    if birth.kind != "inf":
        return False
    if birth.op in _CONSTANTS:
        return not bool(np.isnan(birth.output).any())
    if birth.op in _NEUTRAL:
        return bool(birth.inputs[0].size == 0)
    if birth.op == "Attention" and birth.index == 3:
        # The scores after the mask, where the statement asks for them.
        return _masks(birth) and not bool((birth.output == np.inf).any())
    if birth.op == "Log":
        maker = made_by[0] if made_by else None
        return maker is not None and maker[0] in _SUMS and bool(maker[1]) and 0 in maker[1][0]
    return False


def _masks(birth: Birth) -> bool:
    """Whether an Attention has a mask of bools, or one that it makes itself."""
    mask = birth.inputs[3] if len(birth.inputs) > 3 else None
    lengths = birth.inputs[6] if len(birth.inputs) > 6 else None
    given = mask is not None and mask.dtype == np.bool_
    return given or lengths is not None or bool(birth.attributes.get("is_causal"))
