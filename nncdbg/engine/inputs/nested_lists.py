"""Nested lists as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

EQUAL_ROWS = "use rows of equal length"

_DEEPEST = 64
"""The most axes of an array."""

_MOST = 1 << 20
"""The most items that are compared at one depth."""


def ragged(data: Any) -> str:
    """Describe why a nested list is not an array: `a ragged list: [0] has 2 items, [1] has 1`."""
    level: list[tuple[tuple[int, ...], Any]] = [((), data)]
    for _ in range(_DEEPEST):
        (first, item), *others = level
        length = _length(item)
        for path, other in others:
            if (wrong := _length(other)) != length:
                return f"a ragged list: {_item_count(first, length)}, {_item_count(path, wrong)}"
        if not length or len(level) * length > _MOST:
            return "a ragged list"
        level = [((*path, index), each) for path, item in level for index, each in enumerate(item)]
    return f"a list nested more than {_DEEPEST} levels deep"


def _length(item: Any) -> int | None:
    """Return the length of a list or of an array's first axis; None for a scalar."""
    return len(item) if isinstance(item, (list, tuple)) or np.ndim(item) else None


def _item_count(path: tuple[int, ...], length: int | None) -> str:
    items = "is a single item" if length is None else f"has {length} item{'s' * (length != 1)}"
    return f"{list(path)} {items}"
