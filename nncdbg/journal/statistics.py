"""The statistics of values over steps, in compact chunks."""

from __future__ import annotations

import sqlite3
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nncdbg.journal.checksums import damaged, verified_rows
from nncdbg.journal.transaction import Transaction
from nncdbg.stats import Summary

FIELDS = ("min", "max", "mean", "std", "nan", "posinf", "neginf", "zero", "subnormal", "count")

ROW = np.dtype(
    [("step", np.int64), *((name, np.float64 if n < 4 else np.int64) for n, name in enumerate(FIELDS))]
)
"""The statistics of a value at a step; `min`, `max`, `mean` and `std` are NaN without a finite element."""

_BATCH = np.dtype([("measured", np.int64), ("row", ROW)])

Rows = NDArray[Any]


class StatisticsWriter:
    """The statistics of a run: each commit adds a batch with the rows of all values."""

    def __init__(self, run: int) -> None:
        self._run = run
        self._numbers: dict[str, int] = {}
        self._rows: list[tuple[int, tuple[float | int, ...]]] = []

    def add(self, transaction: Transaction, step: int, name: str, summary: Summary) -> None:
        """Add the statistics of a value at a step."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = transaction.insert("measured", self._run, (None, self._run, name))
        figures = (getattr(summary, field) for field in FIELDS)
        row = (step, *(np.nan if figure is None else figure for figure in figures))
        self._rows.append((number, row))
        transaction.at_end(-self._run, self._write)

    def _write(self, transaction: Transaction) -> None:
        rows = np.array(self._rows, _BATCH)
        self._rows = []
        transaction.insert("recent_statistics", self._run, (None, self._run, len(rows), rows.tobytes()))


def read_statistics(connection: sqlite3.Connection, path: object, run: int, name: str) -> Rows:
    """Return the rows of `ROW` of a value of one run, by step; empty for an unknown value."""
    numbers = {row[2]: row[0] for row in verified_rows(connection, path, "measured", run)}
    if name not in numbers:
        return np.empty(0, ROW)
    parts = []
    for _, _, count, data in verified_rows(connection, path, "recent_statistics", run):
        if len(data) != count * _BATCH.itemsize:
            raise damaged(path, "a batch of statistics has another length")
        rows = np.frombuffer(data, _BATCH)
        parts.append(rows["row"][rows["measured"] == numbers[name]])
    rows = np.concatenate(parts) if parts else np.empty(0, ROW)
    return rows[np.argsort(rows["step"], kind="stable")]
