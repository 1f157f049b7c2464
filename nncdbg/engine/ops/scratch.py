"""Working memory of kernels, reused from call to call.

Fresh pages cost more than the copy into them: an im2col buffer that the system allocates anew for each Conv
takes longer than its product.  The kept memory is bounded, and each thread has its own.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

KEPT_BYTES = 1 << 24
"""The largest block that is kept; larger ones are allocated and freed per call."""


class _Blocks(threading.local):
    def __init__(self) -> None:
        self.by_purpose: dict[str, Any] = {}


_BLOCKS = _Blocks()


def scratch(xp: ModuleType, purpose: str, shape: Sequence[int], dtype: Any) -> Any:
    """Return an uninitialized array, valid until this thread next requests the same `purpose`.

    No result of an op may share memory with it.  Array libraries other than NumPy have their own memory
    pools.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if xp is not np or size > KEPT_BYTES:
        return xp.empty(shape, dtype)
    block = _BLOCKS.by_purpose.get(purpose)
    if block is None or block.size < size:
        block = _BLOCKS.by_purpose[purpose] = np.empty(size, np.uint8)
    return block[:size].view(dtype).reshape(shape)
