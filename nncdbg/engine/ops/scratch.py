"""Working memory of kernels, reused from call to call.

Fresh pages cost more than the copy into them: an im2col buffer that the system allocates anew for each Conv
takes longer than its product.  The kept memory is bounded.  A run has its own workspaces, allocated by its
allocator; kernels that run outside of a run use those of their thread.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

KEPT_BYTES = 1 << 24
"""The largest block that is kept; larger ones are allocated and freed per call."""


class Workspaces:
    """The blocks of kernels by purpose; `allocate` returns new bytes.

    As a context, the workspaces of the kernels that this thread runs inside.
    """

    def __init__(self, allocate: Callable[[int], Any] = lambda size: np.empty(size, np.uint8)) -> None:
        self._allocate = allocate
        self._blocks: dict[str, Any] = {}
        self._outer: list[Workspaces] = []

    def __enter__(self) -> None:
        self._outer.append(_HERE.workspaces)
        _HERE.workspaces = self

    def __exit__(self, *_: object) -> None:
        _HERE.workspaces = self._outer.pop()

    def take(self, purpose: str, size: int) -> Any:
        """Return a block of at least `size` bytes; a small one is kept for the next call."""
        block = self._blocks.get(purpose)
        if block is None or block.size < size:
            if size > KEPT_BYTES:
                return self._allocate(size)
            # The old block is freed first, so that both are never in memory together.
            del block
            self._blocks.pop(purpose, None)
            block = self._blocks[purpose] = self._allocate(size)
        return block

    @property
    def sizes(self) -> dict[str, int]:
        """Return the bytes of each kept block, by purpose."""
        return {purpose: int(block.size) for purpose, block in self._blocks.items()}

    def drain(self) -> int:
        """Free all kept blocks; return their bytes.  No kernel may be running."""
        freed = sum(self.sizes.values())
        self._blocks.clear()
        return freed


class _Here(threading.local):
    def __init__(self) -> None:
        self.workspaces = Workspaces()


_HERE = _Here()


def scratch(xp: ModuleType, purpose: str, shape: Sequence[int], dtype: Any) -> Any:
    """Return an uninitialized array, valid until this thread next requests the same `purpose`.

    No result of an op may share memory with it.  Array libraries other than NumPy have their own memory
    pools.
    """
    if xp is not np:
        return xp.empty(shape, dtype)
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return _HERE.workspaces.take(purpose, size)[:size].view(dtype).reshape(shape)
