"""The cheapest test whether a tensor contains NaN or Inf."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nncdbg.engine import dtypes
from nncdbg.ir.records import Array
from nncdbg.stats.preparation import kernel_of, looked_at

_SMALL = 1 << 12
"""Elements up to which finding the address costs more than a product."""

_BY_PRODUCT = (np.dtype(np.float32), np.dtype(np.float64))
_NAMES = {dtype: name for name, dtype in dtypes.NUMPY.items() if name in dtypes.FLOATS | dtypes.COMPLEX}


def is_finite(array: Any) -> bool:
    """Whether no element is NaN or infinite; True for anything but a tensor of floats.

    A finite sum of squares contains no NaN or Inf. An infinite one may have overflowed, so the elements
    are then checked one by one.
    """
    dtype = getattr(array, "dtype", None)
    if dtype is None or dtype.kind in "biuO":
        return True
    if array.size <= _SMALL and dtype in _BY_PRODUCT and math.isfinite(np.vdot(array, array)):
        return True
    name = _NAMES.get(dtype)
    if name is None:
        return True
    kernel = kernel_of(name)
    if kernel is not None and kernel.all_finite is not None:
        found = array.__array_interface__
        if found["strides"] is None and array.flags.aligned:
            return bool(kernel.all_finite(found["data"][0], array.size))
    return _is_finite_plain(array)


def _is_finite_plain(array: Array) -> bool:
    looked_at(array.size)
    if array.dtype.kind == "c":
        return bool(np.isfinite(array).all())
    with np.errstate(all="ignore"):
        # One pass: a NaN or Inf in a sum persists.
        if array.dtype in _BY_PRODUCT and math.isfinite(np.add.reduce(array, axis=None)):
            return True
        return bool(np.isfinite(array).all())


def holds(value: Any, kind: str) -> bool:
    """Whether a tensor contains a NaN (kind nan) or an infinity (kind inf)."""
    if not isinstance(value, (np.ndarray, np.generic)) or value.dtype.hasobject:
        return False
    return bool(bad(np.asarray(value), kind).any())


def bad(array: Array, kind: str) -> Array:
    """Return a mask of the elements that are NaN (kind nan) or infinite (kind inf).

    The mask is all False for types without such numbers.
    """
    if array.dtype.kind != "c" and dtypes.name_of(array.dtype) not in dtypes.FLOATS:
        return np.zeros(array.shape, bool)
    return np.asarray(np.isnan(array) if kind == "nan" else np.isinf(array))
