"""Values of steps that are kept for history, exact or by a lossy codec, with their measured errors."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta

from nncdbg.engine.dtypes import NUMPY, name_of
from nncdbg.engine.errors import UsageError
from nncdbg.ir.records import Array
from nncdbg.journal import blobs
from nncdbg.journal.checksums import damaged, verified_rows
from nncdbg.journal.codecs import CODECS, EXACT, CodecError, EncodedTensor, decode, encode
from nncdbg.journal.records import KeptValue
from nncdbg.journal.row_types import Count, Row
from nncdbg.journal.stored_json import read_json
from nncdbg.journal.transaction import Transaction

_TABLE = "kept_values"

_AXES = 64
"""Most axes of an array of NumPy."""


def keep(
    transaction: Transaction, run: int, step: int, arrays: Mapping[str, Array], codec: str, compression: str
) -> int:
    """Store the values of a step instead of earlier ones of the same step; return their size in bytes.

    A tensor that the codec cannot store is stored exactly.
    """
    remove(transaction, run, step)
    rows: list[Row] = []
    for name, array in arrays.items():
        used, stored, error = _encoded(array, codec)
        digest = blobs.store(transaction, stored, compression)
        figures = (error.absolute, error.relative, error.rms)
        dtype, shape = name_of(array.dtype), json.dumps(array.shape)
        rows.append((step, run, name, used, dtype, shape, stored.nbytes, *figures, digest))
    transaction.insert_rows(_TABLE, run, rows)
    return sum(row[6] for row in rows)


def remove(transaction: Transaction, run: int, step: int) -> None:
    """Delete the values of a step; their space in the file is used again."""
    found = transaction.connection.execute(
        f"SELECT DISTINCT hash FROM {_TABLE} WHERE run = ? AND step = ?", (run, step)
    ).fetchall()
    if found:
        transaction.delete(_TABLE, run, step)
        blobs.remove_unused(transaction, [digest for (digest,) in found])


def _encoded(array: Array, codec: str) -> tuple[str, Array, CodecError]:
    """Return the codec that was used, the array to store, and the error."""
    if codec != "exact":
        try:
            encoded = encode(array, codec)
        except UsageError:
            # Integers, or elements beyond the range of f16: `used` in the file says so.
            return "exact", array, EXACT
        return codec, np.frombuffer(encoded.data, np.uint8), encoded.error
    return codec, array, EXACT


def records(connection: sqlite3.Connection, path: Path, run: int) -> list[KeptValue]:
    """Return the values that are kept of one run, by step and name."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version < 2:
        return []
    rows = verified_rows(connection, path, _TABLE, run)
    return [_record(path, row) for row in sorted(rows, key=lambda row: row[:3])]


def _record(path: Path, row: Row) -> KeptValue:
    step, run, name, codec, dtype, shape, size, absolute, relative, rms, _ = row
    if codec not in CODECS or dtype not in NUMPY or dtype == "str":
        raise damaged(path, f'the value "{name}" has an unknown codec or type')
    error = CodecError(absolute, relative, rms)
    sizes = read_json(path, f'shape of "{name}"', shape, Annotated[list[Count], Meta(max_length=_AXES)])
    return KeptValue(run, step, name, codec, dtype, tuple(sizes), size, error)


def load(connection: sqlite3.Connection, path: Path, record: KeptValue) -> Array:
    """Return a value that is kept.  Raises LoadError if it is damaged."""
    rows = verified_rows(connection, path, _TABLE, record.run)
    digest = next(row[-1] for row in rows if row[0] == record.step and row[2] == record.name)
    stored = blobs.load(connection, path, record.name, digest)
    if record.codec == "exact":
        if (name_of(stored.dtype), stored.shape) != (record.dtype, record.shape):
            raise damaged(path, f'the value "{record.name}" has another type than its record')
        return stored
    encoded = EncodedTensor(record.codec, record.dtype, record.shape, stored.tobytes(), record.error)
    try:
        array = decode(encoded)
    except UsageError as error:
        raise damaged(path, f'the value "{record.name}" cannot be decoded: {error.message}') from None
    array.flags.writeable = False
    return array
