"""Checksums of rows: SQLite detects damaged pages only in part, so each part of a table has a sum of hashes.

A part is the rows of a table with one key: the steps of a run, the points of a track.  Its sum does not
depend on the order of rows, so rows can be added and removed without the others.  A row that is missing,
changed or there twice changes the sum.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from nncdbg.errors import LoadError
from nncdbg.journal.log_files import bytes_on_disk
from nncdbg.journal.records import COLUMNS, Row, typed

KEYS: dict[str, str] = {
    "points": "track",
    "checkpoint_tensors": "checkpoint",
    "statistics_chunks": "measured",
    **dict.fromkeys(
        ("steps", "tracks", "checkpoints", "entries", "measured", "recent_statistics", "kept_values"), "run"
    ),
}
"""The column that divides a table into parts; another table is one part with the key 0."""

_NUMERIC = frozenset({"steps", "points"})
"""Tables with very many rows of numbers, whose hashes are computed on arrays."""

_MODULUS = 1 << 64


class Sums:
    """Changes of checksums in one transaction."""

    def __init__(self) -> None:
        self._changes: dict[tuple[str, int], tuple[int, int]] = {}

    def add(self, table: str, key: int, rows: Sequence[Row], *, sign: int = 1) -> None:
        """Add rows that were inserted into a part; with ``sign=-1``, subtract rows that were deleted."""
        count, total = self._changes.get((table, key), (0, 0))
        self._changes[table, key] = (count + sign * len(rows), total + sign * sum_of(table, rows))

    def store(self, connection: sqlite3.Connection) -> None:
        """Write the changed checksums, in the transaction that changes the rows."""
        for (table, key), (rows, total) in self._changes.items():
            part = f"{table} {key}"
            old_rows, old_total = _stored(connection, part)
            connection.execute(
                "REPLACE INTO checksums (part, rows, total) VALUES (?, ?, ?)",
                (part, old_rows + rows, _signed(old_total + total)),
            )
        self._changes.clear()


def _signed(total: int) -> int:
    """Return the number modulo 2^64 as a signed integer, as SQLite stores it."""
    total %= _MODULUS
    return total - _MODULUS if total >= _MODULUS >> 1 else total


def sum_of(table: str, rows: Sequence[Row]) -> int:
    """Return the sum of the hashes of rows, modulo 2^64."""
    if table not in _NUMERIC:
        return sum(xxh3_64_intdigest(msgspec.msgpack.encode(row)) for row in rows) % _MODULUS
    mixed = np.zeros(len(rows), np.uint64)
    for number, column in enumerate(zip(*rows, strict=True)):
        # The bits of each number as a double; None has bits of its own.
        numbers = np.array([-0.5 if each is None else each for each in column], np.float64)
        mixed = _mixed(mixed ^ _mixed((numbers + 0.0).view(np.uint64) + np.uint64(number)))
    return int(np.add.reduce(mixed, dtype=np.uint64))


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the finalizer of SplitMix64 (Steele, Lea and Flood, 2014), which maps bits one to one."""
    bits = (bits + np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def verified_rows(connection: sqlite3.Connection, path: Path, table: str, key: int = 0) -> list[Row]:
    """Return the rows of a part in the order of its first columns.  Raises LoadError if one is damaged."""
    columns = ", ".join(COLUMNS[table])
    where = f"WHERE {KEYS[table]} = ?" if table in KEYS else "WHERE ? IS NOT NULL"
    cursor = connection.execute(
        f"SELECT {columns} FROM {table} {where} ORDER BY {COLUMNS[table][0]}, {COLUMNS[table][1]}", (key,)
    )
    rows = _bounded(cursor, path, table)
    stored = _stored(connection, f"{table} {key}")
    try:
        computed = (len(rows), _signed(sum_of(table, rows)))
    except (TypeError, ValueError, OverflowError):
        computed = (-1, 0)
    if computed != stored:
        raise damaged(path, f"rows of the table {table} do not match their checksum")
    try:
        return typed(table, rows)
    except msgspec.ValidationError:
        raise damaged(path, f"a row of the table {table} has a value that nncdbg does not write") from None


def _bounded(cursor: sqlite3.Cursor, path: Path, table: str) -> list[Row]:
    """Return the rows of a query on a table.

    Raises LoadError if they have more bytes than the file: pages that are used twice could make them endless.
    """
    if table in _NUMERIC:
        return cursor.fetchall()
    rows, left = [], bytes_on_disk(path)
    with closing(cursor):
        for row in cursor:
            left -= sum(len(each) for each in row if isinstance(each, (str, bytes)))
            if left < 0:
                raise damaged(path, f"the table {table} has more content than the file")
            rows.append(row)
    return rows


def _stored(connection: sqlite3.Connection, part: str) -> tuple[int, int]:
    """Return the number of rows of a part, and the sum of their hashes as a signed integer."""
    found = connection.execute("SELECT rows, total FROM checksums WHERE part = ?", (part,)).fetchone()
    if found is not None and not all(isinstance(each, int) for each in found):
        raise sqlite3.DatabaseError(f"the checksum of {part} is not a number")
    return found or (0, 0)


def verify_table(connection: sqlite3.Connection, path: Path, table: str) -> None:
    """Raise LoadError if a row of a table or an entry of its indexes is damaged.

    Tables of others have no checksums.
    """
    if not connection.execute(
        "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (table,)
    ).fetchone():
        return
    quoted = table.replace('"', '""')
    (problem,) = connection.execute(f'PRAGMA integrity_check("{quoted}")').fetchone()
    if problem != "ok":
        lines = [line for line in problem.splitlines() if not line.startswith("***")]
        raise damaged(path, lines[0] if lines else problem)
    if table not in COLUMNS:
        return
    parts = connection.execute(
        "SELECT part FROM checksums WHERE part >= ? AND part < ?", (f"{table} ", f"{table}!")
    ).fetchall()
    try:
        keys = [int(part.removeprefix(f"{table} ")) for (part,) in parts]
        count = sum(len(verified_rows(connection, path, table, key)) for key in keys)
    except (ValueError, OverflowError):
        raise damaged(path, f"the checksums of the table {table} cannot be read") from None
    if connection.execute(f"SELECT count(*) FROM {table}").fetchone() != (count,):
        raise damaged(path, f"the table {table} has rows without a checksum")


def damaged(path: Path, why: str) -> LoadError:
    """Return the error for a journal whose content is not what was written."""
    return LoadError(
        f"the journal {path} is damaged: {why}",
        hint="restore the file from a copy; other runs and values of the file may be readable",
    )
