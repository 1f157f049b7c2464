"""Checksums of arrays at the speed of memory, and digests and comparisons of the bits of values."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

import numpy as np

from nncdbg.dtypes import COMPLEX, FLOATS, name_of

_ROW = 8 * 251
"""Bytes; words at the same place of two rows are added.  The number of words is prime, so swapped rows of a
tensor do not cancel."""


def checksum(array: Any) -> str:
    """Return a checksum of an array's dtype, shape and bytes.

    It is a digest of sums of 64-bit words, so that it costs one pass over memory.  Arrays that differ in one
    element have different checksums; it is no protection against an array made on purpose.
    """
    array = np.asarray(array)
    data: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    whole = data.size // _ROW * _ROW
    found = hashlib.blake2b(f"{_name(array.dtype)} {array.shape}\n".encode(), digest_size=16)
    if whole:
        found.update(np.add.reduce(data[:whole].view(np.uint64).reshape(-1, _ROW // 8), axis=0))
    found.update(data[whole:])
    return found.hexdigest()


def digest(content: Any, size: int = 16, *, by_value: bool = False) -> str:
    """Return a digest of a value's type, shape and bytes; of a sequence, of its items in order.

    With `by_value`, it is equal for all NaNs, and for a list and a tuple.
    """
    found = hashlib.blake2b(digest_size=size)
    _feed(found, content, by_value)
    return found.hexdigest()


def _feed(found: Any, content: Any, by_value: bool) -> None:
    if content is None or isinstance(content, (list, tuple)):
        kind = "list" if by_value and content is not None else type(content).__name__
        found.update(f"{kind} {len(content or ())}\n".encode())
        for item in content or ():
            _feed(found, item, by_value)
        return
    array = np.asarray(content)
    found.update(f"{array.dtype} {array.shape}\n".encode())
    if array.dtype.hasobject:
        found.update("\0".join(map(repr, array.reshape(-1).tolist())).encode())
        return
    array = np.ascontiguousarray(array)
    if by_value and name_of(array.dtype) in (*FLOATS, *COMPLEX) and (wrong := np.isnan(array)).any():
        array = array.copy()
        array[wrong] = np.nan
    found.update(array.reshape(-1).view(np.uint8))


def same_bits(one: Any, other: Any) -> bool:
    """Return whether two values have the same types, sizes and bits; NaN equals the same NaN."""
    if isinstance(one, (list, tuple)):
        alike = isinstance(other, (list, tuple)) and len(one) == len(other)
        return alike and all(map(same_bits, one, other))
    if not isinstance(one, (np.ndarray, np.generic)):
        return one is other
    first, second = np.asarray(one), np.asarray(other)
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    if first.dtype.hasobject:
        return bool((first == second).all())
    return first.tobytes() == second.tobytes()


_name = cache(str)
"""The name of a dtype, which NumPy puts together each time."""
