"""The results of a watched expression over time, and whether the latest one is a change."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

_SHOWN = 8
"""Maximum number of displayed elements of a result."""


@dataclass(slots=True)
class Changes:
    """The changes of the result of an expression: (tick, digest, text) each, oldest first."""

    entries: list[tuple[int, bytes, str]] = field(default_factory=list)

    def changed(self, tick: int, result: Any) -> bool:
        """Record the result at a tick; return whether it differs from the previous one.

        The first result is a change, unless it is false.
        """
        self.rewind(tick - 1)
        array = np.asarray(result)
        digest = blake2b(f"{array.dtype}{array.shape}".encode() + array.tobytes(), digest_size=16).digest()
        if self.entries and self.entries[-1][1] == digest:
            return False
        first = not self.entries
        self.entries.append((tick, digest, _text(array)))
        return not (first and array.dtype == np.bool_ and not array.any())

    def rewind(self, tick: int) -> None:
        """Forget the results after a tick."""
        while self.entries and self.entries[-1][0] > tick:
            self.entries.pop()

    def __str__(self) -> str:
        return " -> ".join(text for _, _, text in self.entries[-2:])


def _text(array: np.ndarray[Any, Any]) -> str:
    if array.size > _SHOWN:
        return f"{array.dtype.name}{list(array.shape)}"
    if array.dtype == np.bool_ and not array.ndim:
        return str(bool(array)).lower()
    return np.array2string(array, precision=6, separator=" ").replace("\n", "")
