"""Stores: lazy sources of referenced data, as arrays by key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from nncdbg.engine.graph import Array, TensorType


class Store(Protocol):
    """Named tensors on disk or in memory.

    `read` returns a read-only array (memory-mapped if the format allows it), and raises LoadError for an
    unknown key, or for data that is missing, too short, or outside its folder.
    """

    def keys(self) -> Iterable[str]: ...

    def type(self, key: str) -> TensorType: ...

    def read(self, key: str) -> Array: ...
