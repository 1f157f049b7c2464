"""Tensors as safetensors files in a journal: one per content, in chunks, found by the hash of the content."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from xxhash import xxh3_128

from nncdbg.dtypes import NUMPY, name_of
from nncdbg.engine.frontends.tensor_file import SPELLINGS
from nncdbg.engine.memory.region import available_memory
from nncdbg.errors import LoadError, UsageError
from nncdbg.ir.records import Array
from nncdbg.journal.checksums import damaged, verified_rows
from nncdbg.journal.codecs import NONE, Compression, compressor, decompressor
from nncdbg.journal.log_files import bytes_on_disk
from nncdbg.journal.records import Count, Row, typed
from nncdbg.journal.writing import Transaction

CHUNK = 4 << 20
"""Bytes of a row of `chunks`: far below the 1 GB that SQLite allows, so tensors can be larger than that."""

_PIECE = 128 << 10
"""Bytes that are read at a time: they stay in the processor's cache while they are hashed and copied."""

_KEY = "tensor"
_TYPE = "nncdbg.dtype"
"""A note in the head of a tensor with a type that safetensors does not have; the data are its bytes."""


def contiguous(name: str, value: Any) -> Array:
    """Return a tensor as a little-endian, contiguous array.  Raises UsageError for other objects."""
    array = np.asarray(value)
    try:
        dtype = name_of(array.dtype)
    except KeyError:
        dtype = "str"
    if dtype == "str":
        raise UsageError(
            f'cannot store "{name}" in a journal: it is an array of {array.dtype}',
            hint="put text into the position of a checkpoint",
        )
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return np.asarray(array, order="C")


def head_of(array: Array) -> bytes:
    """Return what precedes the data in a safetensors file of one tensor."""
    dtype = name_of(array.dtype)
    shape, spelled, note = [*array.shape], SPELLINGS.get(dtype), {}
    if spelled is None:
        shape, spelled = [array.nbytes], "U8"
        note = {"__metadata__": {_TYPE: json.dumps([dtype, [*array.shape]])}}
    entry = {"dtype": spelled, "shape": shape, "data_offsets": [0, array.nbytes]}
    text = json.dumps({**note, _KEY: entry}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def store(transaction: Transaction, array: Array, compression: str = NONE) -> bytes:
    """Store a tensor, compressed, unless its content is there; return the hash of its head and data."""
    head = head_of(array)
    data = array.reshape(-1).view(np.uint8)
    state = xxh3_128(head)
    state.update(data.data)
    digest = state.digest()
    connection = transaction.connection
    if connection.execute("SELECT 1 FROM blobs WHERE hash = ?", (digest,)).fetchone():
        return digest
    blob = transaction.insert("blobs", 0, (None, digest, data.nbytes, compression, head))
    compress = compressor(compression)
    chunks = (data[start : start + CHUNK].data for start in range(0, data.nbytes, CHUNK))
    connection.executemany(
        "INSERT INTO chunks (blob, part, data) VALUES (?, ?, ?)",
        ((blob, n, compress(chunk) if compress else chunk) for n, chunk in enumerate(chunks)),
    )
    return digest


def load(connection: sqlite3.Connection, path: Path, name: str, digest: bytes) -> Array:
    """Return the tensor with a content hash, read-only.  Raises LoadError if its bytes have another hash."""
    row = connection.execute(
        "SELECT blob, bytes, codec, head FROM blobs WHERE hash = ?", (digest,)
    ).fetchone()
    if row is None:
        raise damaged(path, f'the tensor "{name}" is missing')
    try:
        blob = typed("blobs", [(row[0], digest, *row[1:])])[0]
        _, _, size, compression, head = blob
        restore = decompressor(compression, CHUNK, path)
        _check_size(path, name, size, compressed=restore is not None)
        array = _array(head, _read(connection, blob, restore))
    except (ValueError, TypeError, KeyError, OverflowError, MemoryError, RecursionError):
        raise damaged(path, f'the tensor "{name}" does not match its content hash') from None
    array.flags.writeable = False
    return array


def _check_size(path: Path, name: str, size: int, *, compressed: bool) -> None:
    """Raise LoadError for a tensor that the file cannot contain, or that does not fit into memory."""
    if not compressed and size > bytes_on_disk(path):
        raise damaged(path, f'the tensor "{name}" has more bytes than the file')
    if size > available_memory():
        raise LoadError(
            f'the tensor "{name}" of the journal {path} has {size} bytes, more than the available memory',
            hint="read it on a machine with more memory",
        )


def _read(connection: sqlite3.Connection, row: Row, restore: Compression | None) -> Array:
    blob, digest, size, _, head = row
    (count,) = connection.execute("SELECT count(part) FROM chunks WHERE blob = ?", (blob,)).fetchone()
    if count != -(-size // CHUNK):
        raise ValueError(f"{count} chunks have not {size} bytes")
    state = xxh3_128(head)
    data = np.empty(size, np.uint8)
    view = data.data
    end = 0
    for piece in _pieces(connection, blob, restore):
        state.update(piece)
        start, end = end, end + len(piece)
        view[start:end] = piece
    if end != size or state.digest() != digest:
        raise ValueError("the bytes have another hash")
    return data


def _pieces(connection: sqlite3.Connection, blob: int, restore: Compression | None) -> Iterator[bytes]:
    """Yield the data of a blob in order; with `restore`, of each compressed chunk."""
    if restore is not None:
        for (stored,) in connection.execute("SELECT data FROM chunks WHERE blob = ? ORDER BY part", (blob,)):
            yield restore(stored)
        return
    numbers = connection.execute("SELECT chunk FROM chunks WHERE blob = ? ORDER BY part", (blob,)).fetchall()
    for (number,) in numbers:
        with connection.blobopen("chunks", "data", number, readonly=True) as chunk:
            while piece := chunk.read(_PIECE):
                yield piece


def _array(head: bytes, data: Array) -> Array:
    header = msgspec.json.decode(head[8:], type=_Header)
    note = header.metadata.get(_TYPE)
    if note is not None:
        dtype, shape = msgspec.json.decode(note, type=tuple[str, list[Count]])
    else:
        dtype, shape = _TYPES[header.tensor.dtype], header.tensor.shape
    return data.view(NUMPY[dtype]).reshape(shape)


class _Entry(msgspec.Struct):
    """The type and shape of a tensor in the head of a safetensors file."""

    dtype: str
    shape: list[Count]


class _Header(msgspec.Struct):
    """The head of a safetensors file of one tensor."""

    tensor: _Entry
    metadata: dict[str, str] = msgspec.field(name="__metadata__", default_factory=dict)


_TYPES = {spelled: name for name, spelled in SPELLINGS.items()}


def remove_unused(transaction: Transaction, digests: list[bytes]) -> None:
    """Delete the tensors with these content hashes that neither a checkpoint nor a kept value has."""
    connection = transaction.connection
    for digest in digests:
        used = connection.execute(
            "SELECT 1 FROM checkpoint_tensors WHERE hash = ?1 "
            "UNION ALL SELECT 1 FROM kept_values WHERE hash = ?1 LIMIT 1",
            (digest,),
        )
        if used.fetchone() is None:
            (blob,) = connection.execute("SELECT blob FROM blobs WHERE hash = ?", (digest,)).fetchone()
            connection.execute("DELETE FROM chunks WHERE blob = ?", (blob,))
            transaction.delete("blobs", 0, blob)


def verify_all(connection: sqlite3.Connection, path: Path) -> None:
    """Raise LoadError if the content of a tensor is damaged, or a chunk belongs to no tensor."""
    blobs = verified_rows(connection, path, "blobs")
    for number, digest, *_ in blobs:
        load(connection, path, f"blob {number}", digest)
    # Not count(*), which SQLite executes as one instruction, however long it takes.
    (chunks,) = connection.execute("SELECT count(part) FROM chunks").fetchone()
    if chunks != sum(-(-row[2] // CHUNK) for row in blobs):
        raise damaged(path, "the table chunks has rows that belong to no tensor")


DEEPEST = 100
"""Most objects and arrays inside each other: far below Python's limit of nested calls."""

LONGEST = 64 << 20
"""Most characters of a document, which takes about 20 times as many bytes of memory as an object."""


def read_json(path: Path, what: str, text: str | bytes, kind: Any = dict[str, Any]) -> Any:
    """Return a document as an object of a type.  Raises LoadError if it is not one."""
    try:
        if len(text) > LONGEST:
            raise ValueError("too long")
        document = json.loads(text)
        if _is_deep(document):
            raise ValueError("too deep")
        return msgspec.convert(document, kind)
    except (ValueError, RecursionError):
        raise damaged(path, f"the {what} is not as nncdbg writes it") from None


def write_json(value: Any, what: str) -> str:
    """Return the document of an object.  Raises UsageError for one that `read_json` does not accept."""
    why = "it has too many levels, or is too long"
    try:
        text = json.dumps(value)
        if len(text) <= LONGEST and not _is_deep(json.loads(text)):
            return text
    except RecursionError:
        pass
    except (TypeError, ValueError) as error:
        why = str(error)
    raise UsageError(
        f"the {what} cannot be stored as JSON: {why}", hint="put arrays into `tensors` of the checkpoint"
    )


def _is_deep(document: Any) -> bool:
    """Return whether a document has more than `DEEPEST` levels."""
    level = [document]
    for _ in range(DEEPEST):
        level = [
            child
            for part in level
            for child in (part.values() if isinstance(part, dict) else part if isinstance(part, list) else ())
        ]
        if not level:
            return False
    return True
