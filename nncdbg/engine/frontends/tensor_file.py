"""Slot contents in a safetensors file: tensors of every type, sequences, strings, absent optionals.

Types that the format does not have (4 bits, complex128, some 8-bit types) are stored as bytes; strings
are in the description.  Each value has an `TensorEntry`, which is part of a JSON document.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from nncdbg.engine.dtypes import NUMPY, name_of
from nncdbg.engine.errors import LoadError
from nncdbg.engine.frontends.safetensors import STORABLE, open_store, write_store
from nncdbg.engine.frontends.stores import ArrayStore, Store
from nncdbg.engine.text.lexemes import name_text
from nncdbg.ir.records import Array

STRINGS = "str"

T = TypeVar("T")


class TensorEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stored form of one value.

    `tensor` is a key of the file; with `bytes`, its bytes are those of a tensor of `dtype` and `shape`.
    `strings` are a tensor of strings, `items` a sequence; without any of these it is an absent optional.
    """

    tensor: str | None = None
    bytes: bool = False
    dtype: str | None = None
    shape: list[int] | None = None
    strings: list[str] | None = None
    items: list[TensorEntry] | None = None

    @property
    def in_file(self) -> bool:
        """Whether the safetensors file has data of this value."""
        return self.tensor is not None or any(item.in_file for item in self.items or ())


def pack(contents: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, TensorEntry]]:
    """Return the tensors to write, by key, and the entries to read each value again."""
    tensors: dict[str, Array] = {}
    return tensors, {name: _packed(name, content, tensors) for name, content in contents.items()}


def _packed(key: str, content: Any, tensors: dict[str, Array]) -> TensorEntry:
    if content is None:
        return TensorEntry()
    if isinstance(content, (list, tuple)):
        return TensorEntry(items=[_packed(f"{key}[{i}]", item, tensors) for i, item in enumerate(content)])
    array = np.asarray(content)
    dtype, shape = name_of(array.dtype), list(array.shape)
    if dtype == STRINGS:
        return TensorEntry(
            dtype=dtype, shape=shape, strings=[_text(item) for item in array.reshape(-1).tolist()]
        )
    native = array.astype(array.dtype.newbyteorder("<"), copy=False) if array.dtype.isbuiltin != 2 else array
    key = key_for(key, tensors)
    if dtype in STORABLE:
        tensors[key] = np.asarray(native, order="C")
        return TensorEntry(tensor=key, dtype=dtype, shape=shape)
    tensors[key] = np.frombuffer(native.tobytes(), np.uint8)
    return TensorEntry(tensor=key, dtype=dtype, shape=shape, bytes=True)


def key_for(name: str, taken: Collection[str]) -> str:
    """Return an unused safetensors key for a value: its name, as far as allowed in a key."""
    key = name.encode("utf-8", "backslashreplace").decode()
    number = 1
    while key in taken or key == "__metadata__":
        number += 1
        key = f"{name}.{number}".encode("utf-8", "backslashreplace").decode()
    return key


def _text(item: Any) -> str:
    return item.decode("utf-8", "surrogateescape") if isinstance(item, bytes) else str(item)


def write_tensors(path: Path, tensors: Mapping[str, Array], note: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file; `note` is stored in its header.  Raises LoadError if writing fails."""
    try:
        write_store(path, tensors, note)
    except OSError as error:
        raise LoadError(f"cannot write {path}: {error.strerror or error}") from None


def unpack(path: Path, entries: Mapping[str, TensorEntry]) -> dict[str, Any]:
    """Return the values that entries describe, tensors as views of the mapped file.

    Raises LoadError for a file without them.
    """
    store: Store = open_store(path) if any(entry.in_file for entry in entries.values()) else ArrayStore({})
    keys = frozenset(store.keys())
    return {name: _unpacked(name, entry, store, keys, path) for name, entry in entries.items()}


def _unpacked(name: str, entry: TensorEntry, store: Store, keys: frozenset[str], path: Path) -> Any:
    if entry.items is not None:
        return [_unpacked(name, item, store, keys, path) for item in entry.items]
    if entry.tensor is None and entry.strings is None:
        return None
    shape = tuple(entry.shape or ())
    dtype = NUMPY.get(entry.dtype or "")
    if dtype is None:
        raise LoadError(
            f'%{name_text(name)} in {path} has an unknown type "{entry.dtype}"', hint="write the folder again"
        )
    try:
        if entry.strings is not None:
            flat = np.empty(len(entry.strings), object)
            flat[:] = entry.strings
            return flat.reshape(shape)
        assert entry.tensor is not None
        if entry.tensor not in keys:
            raise ValueError(f'the file has no tensor "{entry.tensor}"')
        array = store.read(entry.tensor)
        if entry.bytes:
            array = np.frombuffer(array.tobytes(), dtype)
        elif array.shape != shape:
            raise ValueError(f"the data has sizes {[*array.shape]}, not {[*shape]}")
        if array.dtype != dtype:
            raise ValueError(f"the data has type {name_of(array.dtype)}, not {entry.dtype}")
        return array.reshape(shape)
    except ValueError as error:
        raise LoadError(
            f"%{name_text(name)} in {path} is damaged: {error}", hint="write the folder again"
        ) from None


# -- documents --------------------------------------------------------------------------------------


def to_json(record: msgspec.Struct) -> str:
    """Return a record as a JSON document; numbers that JSON does not have become null."""
    return json.dumps(_finite(msgspec.to_builtins(record)), indent=1, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def from_json(text: str | bytes, kind: type[T], title: str) -> T:
    """Decode a record from JSON.  Raises LoadError with a message that begins with `title` if damaged."""
    try:
        # Not msgspec's own decoder: it rejects lone surrogates in names.
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(title, error) from None
    return from_builtins(content, kind, title)


def from_builtins(content: Any, kind: type[T], title: str) -> T:
    """Convert decoded JSON to a record.  Raises LoadError that begins with `title` if it is damaged."""
    try:
        return msgspec.convert(content, kind)
    except (RecursionError, msgspec.ValidationError) as error:
        raise _damaged(title, error) from None


def _damaged(title: str, error: Exception) -> LoadError:
    return LoadError(f"{title} is damaged: {error}", hint="write it again")
