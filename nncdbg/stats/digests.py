"""Digests of values."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from nncdbg.dtypes import COMPLEX, FLOATS, name_of


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
