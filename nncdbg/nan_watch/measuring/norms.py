"""Norms of tensors and of their changes, with blocks in f64 so that no copy of a large tensor is made."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nncdbg.engine.dtypes import FLOATS, name_of
from nncdbg.stats import summarize

_BLOCK = 1 << 16
"""Elements per block."""


def is_float_tensor(content: Any) -> bool:
    """Return whether a content is a tensor of floats on the host."""
    is_tensor = isinstance(content, (np.ndarray, np.generic)) and not content.dtype.hasobject
    return is_tensor and name_of(content.dtype) in FLOATS


def root_mean_square(content: Any) -> float | None:
    """Return the root of the mean square; None for non-finite contents, and for non-float values."""
    if not is_float_tensor(content):
        return None
    summary = summarize(np.asarray(content))
    if summary.mean is None or summary.std is None or summary.finite < summary.count:
        return None
    return math.hypot(summary.mean, summary.std)


def norm_and_change(old: Any, new: Any) -> tuple[float, float]:
    """Return (norm of `old`, norm of `new` - `old`) of two float tensors of the same shape, in f64."""
    before = change = 0.0
    flat_old, flat_new = np.asarray(old).reshape(-1), np.asarray(new).reshape(-1)
    for start in range(0, flat_old.size, _BLOCK):
        part = flat_old[start : start + _BLOCK].astype(np.float64)
        before = math.hypot(before, float(np.linalg.norm(part)))
        part -= flat_new[start : start + _BLOCK].astype(np.float64)
        change = math.hypot(change, float(np.linalg.norm(part)))
    return before, change
