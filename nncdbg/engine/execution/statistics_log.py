"""The latest statistics of every statement's outputs, as rows of one ring buffer.

A row is written by the inspection pass (ten float64, see `stats.inspection`), beside a reference to
its array while that is live.  The ring has a fixed size, so a loop of any length runs in constant
memory.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from weakref import ref

CAPACITY = 1 << 13
MASK = CAPACITY - 1
COLUMNS = 10
ROW_BYTES = COLUMNS * 8


class Positions:
    """Numbers rows; `take` is the bound method of a counter, which is the fastest way."""

    def __init__(self) -> None:
        self._counter = count()
        self.take = self._counter.__next__

    @property
    def written(self) -> int:
        """Return the count of numbers taken."""
        # A counter's repr is the one public way to read it without taking a number.
        return int(repr(self._counter)[6:-1])


class StatisticsLog:
    """`positions` numbers the rows ever written; row `n`, of the array `results[n & MASK]`, is `n & MASK`."""

    def __init__(self) -> None:
        self.rows = np.empty((CAPACITY, COLUMNS), np.float64)
        self.address: int = self.rows.ctypes.data
        self.results: list[ref[Any] | None] = [None] * CAPACITY
        self.positions = Positions()
        self._positions: dict[int, int] = {}
        """id(array) to the position of its row, up to `_indexed`."""
        self._indexed = 0

    def row_of(self, array: Any) -> list[float] | None:
        """Return the row logged when this array was written; None if the ring does not have it."""
        self._index()
        position = self._positions.get(id(array), -1)
        made = self.results[position & MASK]
        # The position or the identity may belong to another array now.
        if position < 0 or made is None or made() is not array:
            return None
        found: list[float] = self.rows[position & MASK].tolist()
        return found

    def _index(self) -> None:
        written = self.positions.written
        if len(self._positions) > 4 * CAPACITY:
            self._positions.clear()
            self._indexed = 0
        for position in range(max(self._indexed, written - CAPACITY), written):
            made = self.results[position & MASK]
            if made is not None and (array := made()) is not None:
                self._positions[id(array)] = position
        self._indexed = written
