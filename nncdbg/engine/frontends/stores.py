"""Where data by reference comes from.  A store gives arrays by key, lazily."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from nncdbg.engine.graph import Array, TensorType


class Store(Protocol):
    """Named tensors on disk or in memory.

    `read` gives a read-only array (memory-mapped where the format allows), and raises LoadError
    for a key that is not there or data that is missing, too short, or outside its folder.
    """

    def keys(self) -> Iterable[str]: ...

    def type(self, key: str) -> TensorType: ...

    def read(self, key: str) -> Array: ...
