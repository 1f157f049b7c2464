"""The latest statistics of every statement's outputs, as rows of one ring buffer.

A row is what the inspection pass writes (ten float64, see `stats.inspection`); whose it is
stands beside it.  The ring is of fixed size, so a loop of any length runs in constant memory.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from nncdbg.engine.linking import Binding

CAPACITY = 1 << 13
MASK = CAPACITY - 1
COLUMNS = 10
ROW_BYTES = COLUMNS * 8


class Positions:
    """Numbers rows; `take` is the bound method of a counter, as that is the cheapest."""

    def __init__(self) -> None:
        self._counter = count()
        self.take = self._counter.__next__

    @property
    def written(self) -> int:
        """How many numbers were taken."""
        # A counter's repr is the one public way to read it without taking a number.
        return int(repr(self._counter)[6:-1])


class StatisticsLog:
    """`positions` numbers the rows ever written; row `n` stands at `n & MASK`."""

    def __init__(self) -> None:
        self.rows = np.empty((CAPACITY, COLUMNS), np.float64)
        self.address: int = self.rows.ctypes.data
        self.owners: list[tuple[Binding, int] | None] = [None] * CAPACITY
        self.positions = Positions()

    def history(self, code: Any, pc: int, output: int = 0) -> list[list[float]]:
        """The rows that the ring still has for one output of a statement, oldest first."""
        written = self.positions.written
        return [
            self.rows[position & MASK].tolist()
            for position in range(max(0, written - CAPACITY), written)
            if (owner := self.owners[position & MASK]) is not None
            and owner[0].code is code
            and owner[0].pc == pc
            and owner[1] == output
        ]
