"""What the models of ``ai.onnx.ml`` share: classes, and the transforms of scores as onnxruntime has them."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi
from typing import Any

import numpy as np

WINITZKI = 0.147
"""The free parameter of the approximation of the inverse of erf, as in onnxruntime."""


def labels_of(integers: Sequence[int] | None, texts: Sequence[str] | None) -> Any:
    """Return the classes of a model, as i64 or as strings."""
    return np.array(texts, object) if texts else np.array(integers or (), np.int64)


def rows_of(x: Any) -> Any:
    """Return samples as f64 if they are f64, else as f32, with one row per sample."""
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    return rows if rows.dtype == np.float64 else rows.astype(np.float32)


def transformed(scores: Any, name: str) -> Any:
    """Return the scores [N, classes] after a `post_transform`."""
    with np.errstate(all="ignore"):
        return _TRANSFORMS[name](scores)


def one_score(scores: Any, name: str) -> Any:
    """Return transformed scores [N, targets]; of one target, onnxruntime transforms only by PROBIT."""
    return scores if scores.shape[1] == 1 and name != "PROBIT" else transformed(scores, name)


def _softmax(scores: Any) -> Any:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _softmax_zero(scores: Any) -> Any:
    """Softmax in which a score of 0 keeps the weight 0."""
    greatest = scores.max(axis=1, keepdims=True)
    powers = np.where(np.abs(scores) > 1e-7, np.exp(scores - greatest), scores * np.exp(-greatest))
    total = powers.sum(axis=1, keepdims=True)
    return np.where(total == 0, scores.dtype.type(0.5), powers / np.where(total == 0, 1, total))


def _logistic(scores: Any) -> Any:
    powers = np.exp(-np.abs(scores))
    return np.where(scores < 0, powers, 1) / (1 + powers)


def _probit(scores: Any) -> Any:
    """The quantiles of the normal distribution, by Winitzki's approximation."""
    z = 2 * scores - 1
    log = np.log((1 - z) * (1 + z))
    half = 2 / (pi * WINITZKI) + 0.5 * log
    size = np.sqrt(np.sqrt(half * half - log / WINITZKI) - half)
    return scores.dtype.type(1.41421356) * np.where(z < 0, -size, size)


_TRANSFORMS = {
    "NONE": lambda scores: scores,
    "LOGISTIC": _logistic,
    "SOFTMAX": _softmax,
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": _probit,
}
