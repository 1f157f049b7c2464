"""Narrow floats (f16, bf16, f8 ...) are computed in f32 and rounded once, at the end."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from nncdbg.dtypes import FLOATS

NARROW = FLOATS - {"f32", "f64"}
"""Short names of the element types that are computed in f32."""


def is_narrow(dtype: Any) -> bool:
    """Return True for a float below 32 bits: f16, and `ml_dtypes` types of a kind other than i, u and b."""
    return bool(dtype.itemsize < 4 and dtype.kind not in "iub")


def widened(xp: ModuleType, x: Any) -> Any:
    """Return `x` in f32 if its type is a narrow float, else `x` itself (None stays None)."""
    return x.astype(xp.float32) if x is not None and is_narrow(x.dtype) else x


def mean_over(xp: ModuleType, x: Any, axis: tuple[int, ...], keepdims: bool = False) -> Any:
    """Return the mean of a wide float tensor over axes; NaN over no elements, without NumPy's warning."""
    if x.size:
        return x.mean(axis=axis, keepdims=keepdims)
    total = x.sum(axis=axis, keepdims=keepdims)
    return xp.full(total.shape, xp.nan, x.dtype)


def settled(xp: ModuleType, result: Any, dtype: Any, out: Any = None) -> Any:
    """Return `result` rounded to `dtype`, in `out` if given."""
    if out is None:
        return xp.asarray(result, dtype=dtype)
    if result is not out:
        xp.copyto(out, result, casting="unsafe")
    return out
