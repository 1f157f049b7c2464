"""The statistics of values over steps: batches as they are written, then chunks per value, thinned by age.

A commit adds one batch with the rows of all values.  When many rows have collected, they are sorted into
chunks of each value.  Of the last `RECENT` rows of a value all are kept; of those of twice that age every
second, and so on, so that the size grows with the logarithm of the number of steps.  The first row with a
NaN or Inf after one without is always kept.
"""

from __future__ import annotations

import math
import sqlite3
import struct
import zlib
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nncdbg.journal.checksums import damaged, verified_rows
from nncdbg.journal.writing import Transaction
from nncdbg.stats import Summary

FIELDS = ("min", "max", "mean", "std", "nan", "posinf", "neginf", "zero", "subnormal", "count")

ROW = np.dtype(
    [("step", np.int64), *((name, np.float64 if n < 4 else np.int64) for n, name in enumerate(FIELDS))]
)
"""The statistics of a value at a step; `min`, `max`, `mean` and `std` are NaN without a finite element."""

RECENT = 1024
"""The number of last rows of each value that are all kept."""

CHUNK_ROWS = 256

_BATCH = np.dtype([("measured", np.int64), ("row", ROW)])
_MOST_ROWS = 1 << 17
"""Rows in batches before they are sorted into chunks: 12 MB, which are read and filtered in about 10 ms."""

_MOST_BATCHES = 1024

_FIGURES = attrgetter(*FIELDS)
_PACKED = struct.Struct("=q4d6q")

Rows = NDArray[Any]


def packed(step: int, summary: Summary) -> bytes:
    """Return the bytes of a `ROW`."""
    least, greatest, mean, std, *counts = _FIGURES(summary)
    if least is None:
        least = greatest = mean = std = math.nan
    return _PACKED.pack(step, least, greatest, mean, std, *counts)


@dataclass(slots=True)
class _Chunk:
    """A stored chunk: every ``2**level``-th row up to the row number `ordinal` of its value."""

    number: int
    ordinal: int
    level: int
    rows: int


class StatisticsWriter:
    """The statistics of a run, written in the writer thread."""

    def __init__(self, run: int) -> None:
        self._run = run
        self._numbers: dict[str, int] = {}
        self._new: list[bytes] = []
        self._new_numbers: list[int] = []
        self._batches: list[Rows] = []
        self._chunks: dict[int, list[_Chunk]] = {}

    def add(self, transaction: Transaction, name: str, row: bytes) -> None:
        """Add the packed statistics of a value at a step."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = transaction.insert("measured", self._run, (None, self._run, name))
        self._new.append(row)
        self._new_numbers.append(number)
        transaction.at_end(-self._run, self._write)

    def finish(self, transaction: Transaction) -> None:
        """Sort all rows into chunks, at the end of the run."""
        if self._new or self._batches:
            transaction.at_end(-self._run, self._sort_all)

    def _write(self, transaction: Transaction) -> None:
        rows = np.empty(len(self._new), _BATCH)
        rows["measured"] = self._new_numbers
        rows["row"] = np.frombuffer(b"".join(self._new), ROW)
        self._new, self._new_numbers = [], []
        self._batches.append(rows)
        row = (None, self._run, len(rows), rows.tobytes())
        transaction.insert("recent_statistics", self._run, row)
        if sum(map(len, self._batches)) > _MOST_ROWS or len(self._batches) > _MOST_BATCHES:
            self._sort(transaction)

    def _sort_all(self, transaction: Transaction) -> None:
        if self._new:
            self._write(transaction)
        self._sort(transaction)

    def _sort(self, transaction: Transaction) -> None:
        """Move the rows of all batches to the chunks of their values, and thin older chunks."""
        if not self._batches:
            return
        rows = np.concatenate(self._batches)
        rows = rows[np.argsort(rows["measured"], kind="stable")]
        numbers, starts = np.unique(rows["measured"], return_index=True)
        for number, part in zip(numbers.tolist(), np.split(rows["row"], starts[1:]), strict=True):
            chunks = self._chunks.setdefault(number, [])
            ordinal = chunks[-1].ordinal if chunks else 0
            self._chunks[number] = chunks + _insert(transaction, number, part, 0, ordinal)
            self._thin(transaction, number)
        transaction.delete("recent_statistics", self._run)
        self._batches = []

    def _thin(self, transaction: Transaction, number: int) -> None:
        """Rewrite the chunks that are old enough for a higher level; small neighbours become one chunk."""
        kept: list[_Chunk] = []
        newest = self._chunks[number][-1].ordinal
        group: list[_Chunk] = []
        level = 0
        for chunk in self._chunks[number]:
            wanted = level_of(newest - chunk.ordinal)
            if group and (wanted != level or wanted == chunk.level):
                kept += self._rewrite(transaction, number, group, level)
                group = []
            if wanted == chunk.level:
                kept.append(chunk)
                continue
            if not group and kept and kept[-1].level == wanted and kept[-1].rows <= CHUNK_ROWS // 2:
                group.append(kept.pop())
            group.append(chunk)
            level = wanted
        if group:
            kept += self._rewrite(transaction, number, group, level)
        self._chunks[number] = kept

    def _rewrite(
        self, transaction: Transaction, number: int, group: list[_Chunk], level: int
    ) -> list[_Chunk]:
        parts = []
        for chunk in group:
            (data,) = transaction.connection.execute(
                "SELECT data FROM statistics_chunks WHERE chunk = ?", (chunk.number,)
            ).fetchone()
            parts.append(thinned(_decoded(data, chunk.rows), 1 << (level - chunk.level)))
            transaction.delete("statistics_chunks", number, chunk.number)
        return _insert(transaction, number, np.concatenate(parts), level, group[-1].ordinal, end=True)


def level_of(age: int) -> int:
    """Return the level of rows so many rows before the last one: of each 2^level rows, one is kept."""
    return (age // RECENT).bit_length()


def thinned(rows: Rows, stride: int) -> Rows:
    """Return every `stride`-th row, and each row with a NaN or Inf after one without."""
    abnormal = (rows["nan"] > 0) | (rows["posinf"] > 0) | (rows["neginf"] > 0)
    keep = abnormal.copy()
    keep[1:] &= ~abnormal[:-1]
    keep[::stride] = True
    return rows[keep]


def _insert(
    transaction: Transaction, number: int, rows: Rows, level: int, ordinal: int, *, end: bool = False
) -> list[_Chunk]:
    """Insert rows as chunks; `ordinal` is the row number before them or, with `end`, of the last one."""
    chunks = []
    for start in range(0, len(rows), CHUNK_ROWS):
        part = rows[start : start + CHUNK_ROWS]
        last = ordinal if end else ordinal + start + len(part)
        row = (None, number, *(int(part["step"][n]) for n in (0, -1)), last, level, len(part), _encoded(part))
        chunks.append(_Chunk(transaction.insert("statistics_chunks", number, row), last, level, len(part)))
    return chunks


def _encoded(rows: Rows) -> bytes:
    """Return rows compressed: the first bytes of all, then the second, since most of these are equal."""
    table = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), ROW.itemsize)
    return zlib.compress(table.T.tobytes(), 1)


def _decoded(data: bytes, count: int) -> Rows:
    size = ROW.itemsize * count
    table = np.frombuffer(zlib.decompressobj().decompress(data, size + 1), np.uint8)
    table = table.reshape(ROW.itemsize, count)
    return np.ascontiguousarray(table.T).reshape(-1).view(ROW)


def names_of(connection: sqlite3.Connection, path: Path, run: int) -> dict[str, int]:
    """Return the names of the values with statistics of a run, and their numbers in the file."""
    return {name: number for number, _, name in verified_rows(connection, path, "measured", run)}


def read_statistics(connection: sqlite3.Connection, path: Path, run: int, name: str) -> Rows:
    """Return the rows of `ROW` of a value of one run, one per step; empty for an unknown value."""
    number = names_of(connection, path, run).get(name)
    if number is None:
        return np.empty(0, ROW)
    try:
        parts = [
            _decoded(row[-1], row[-2])
            for row in sorted(
                verified_rows(connection, path, "statistics_chunks", number), key=lambda row: (row[4], row[0])
            )
        ]
        for _, _, count, data in verified_rows(connection, path, "recent_statistics", run):
            batch = np.frombuffer(data, _BATCH, count)
            parts.append(batch["row"][batch["measured"] == number])
    except (ValueError, zlib.error) as error:
        raise damaged(path, f"statistics cannot be read: {error}") from None
    rows = np.concatenate(parts) if parts else np.empty(0, ROW)
    # A step that was measured twice, after a restart, has the later row.
    _, last = np.unique(rows["step"][::-1], return_index=True)
    return rows[::-1][last]
