"""Statements that the formulas of the classifiers and regressors of ``ai.onnx.ml`` share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import pi

from nncdbg.engine.ops.post_transforms import WINITZKI


def labels_constant(integers: Sequence[object] | None, texts: Sequence[object] | None) -> str:
    """Return the constant `%labels`: the classes, which are integers or texts."""
    if texts:
        return f"%labels: str[{len(texts)}] = [{', '.join(json.dumps(text) for text in texts)}]"
    return f"%labels: i64[{len(integers or ())}] = {[*(integers or ())]}"


def transform_lines(name: str, source: str, target: str) -> list[str]:
    """Compute `target` from the scores `source` [N, classes] by a `post_transform`."""
    if name == "NONE":
        return [f"%{target} = Identity(%{source})"]
    if name == "LOGISTIC":
        return [f"%{target} = Sigmoid(%{source})"]
    if name == "SOFTMAX":
        return [f"%{target} = Softmax(%{source}, axis=1)"]
    return _softmax_zero_lines(source, target) if name == "SOFTMAX_ZERO" else _probit_lines(source, target)


def _softmax_zero_lines(source: str, target: str) -> list[str]:
    """Softmax in which a score of 0 keeps the weight 0."""
    return [
        f"%greatest = ReduceMax(%{source}, [1])",
        f"%below = Sub(%{source}, %greatest)",
        "%powers = Exp(%below)",
        "%less = Neg(%greatest)",
        "%unit = Exp(%less)",
        f"%small = Mul(%{source}, %unit)",
        f"%sizes = Abs(%{source})",
        "%counts = Greater(%sizes, 0.0000001)",
        "%parts = Where(%counts, %powers, %small)",
        "%total = ReduceSum(%parts, [1])",
        "%empty = Equal(%total, 0)",
        "%divisor = Where(%empty, 1, %total)",
        "%shares = Div(%parts, %divisor)",
        f"%{target} = Where(%empty, 0.5, %shares)",
    ]


def _probit_lines(source: str, target: str) -> list[str]:
    """The quantiles of the normal distribution, by Winitzki's approximation."""
    return [
        f"%double = Mul(%{source}, 2)",
        "%z = Sub(%double, 1)",
        "%under = Sub(1, %z)",
        "%over = Add(%z, 1)",
        "%t = Mul(%under, %over)",
        "%log = Log(%t)",
        "%half = Mul(%log, 0.5)",
        f"%v = Add(%half, {2 / (pi * WINITZKI)})",
        f"%w = Div(%log, {WINITZKI})",
        "%square = Mul(%v, %v)",
        "%rest = Sub(%square, %w)",
        "%root = Sqrt(%rest)",
        "%excess = Sub(%root, %v)",
        "%size = Sqrt(%excess)",
        "%negative = Less(%z, 0)",
        "%mirrored = Neg(%size)",
        "%quantile = Where(%negative, %mirrored, %size)",
        f"%{target} = Mul(%quantile, 1.41421356)",
    ]
