"""Digests of values."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np


def digest(content: Any) -> str:
    """Return a digest of a value's type, shape and bytes; of a sequence, of its items in order."""
    found = hashlib.blake2b(digest_size=16)
    _add(found, content)
    return found.hexdigest()


def _add(found: Any, content: Any) -> None:
    if content is None or isinstance(content, (list, tuple)):
        found.update(f"{type(content).__name__} {len(content or ())}\n".encode())
        for item in content or ():
            _add(found, item)
        return
    array = np.asarray(content)
    found.update(f"{array.dtype} {array.shape}\n".encode())
    if array.dtype.hasobject:
        found.update("\0".join(map(repr, array.reshape(-1).tolist())).encode())
    else:
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
