"""Slot contents in a safetensors file: tensors of every type, sequences, strings, absent optionals.

Types that the format does not have (4 bits, complex128, some 8-bit types) are stored as bytes; strings
are in the description.  Each value has an `TensorEntry`, which is part of a JSON document.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import safetensors

from nncdbg.dtypes import NUMPY, name_of
from nncdbg.engine.frontends.onnx_file import file_size
from nncdbg.engine.frontends.stores import ArrayStore, Store
from nncdbg.errors import LoadError
from nncdbg.ir.records import Array, TensorType
from nncdbg.text.lexemes import name_text

# -- safetensors -----------------------------------------------------------------------------------

_NAMES = {
    "F64": "f64",
    "F32": "f32",
    "F16": "f16",
    "BF16": "bf16",
    "F8_E4M3": "f8e4m3fn",
    "F8_E5M2": "f8e5m2",
    "F8_E8M0": "f8e8m0fnu",
    "I64": "i64",
    "I32": "i32",
    "I16": "i16",
    "I8": "i8",
    "U64": "u64",
    "U32": "u32",
    "U16": "u16",
    "U8": "u8",
    "BOOL": "bool",
    "C64": "c64",
}

SPELLINGS = {name: spelled for spelled, name in _NAMES.items()}
"""The name of each element type in the header of a file."""

_NOTE = "__metadata__"
"""The key of the header that is no tensor."""

STORABLE = frozenset(_NAMES.values())
"""Element types that safetensors supports; others need another form."""


class SafetensorsStore:
    """`Store` over an opened safetensors file."""

    def __init__(self, path: Path, header: dict[str, Any], data: Array) -> None:
        self._path = path
        self._note: dict[str, str] = header.pop(_NOTE, {})
        self._header = header
        self._data = data

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the path for a copy, which opens the file again."""
        return open_store, (self._path,)

    def keys(self) -> Iterable[str]:
        return sorted(self._header)

    def type(self, key: str) -> TensorType:
        """Return the tensor's type from the file's header; LoadError for an unknown key or element type."""
        entry = self._known(key)
        name = _NAMES.get(entry["dtype"])
        if name is None:
            raise LoadError(
                f'tensor "{key}" of {self._path} has the unsupported element type {entry["dtype"]}'
            )
        return TensorType(name, tuple(entry["shape"]))

    def read(self, key: str) -> Array:
        """Return the tensor, read-only: a view of the mapped file.  Raises LoadError for an unknown key."""
        type_ = self.type(key)
        entry = self._known(key)
        start, end = entry["data_offsets"]
        array: Array = self._data[start:end].view(NUMPY[type_.dtype]).reshape(entry["shape"])
        if not array.flags.aligned:
            array = array.copy()
            array.flags.writeable = False
        return array

    def note(self) -> dict[str, str]:
        """Return the metadata in the file's header."""
        return self._note

    def _known(self, key: str) -> dict[str, Any]:
        if key not in self._header:
            raise LoadError(f'{self._path} has no tensor "{key}"', hint="check the `store` line of the text")
        entry: dict[str, Any] = self._header[key]
        return entry


def open_store(path: Path) -> SafetensorsStore:
    """Return the tensors of a .safetensors file.  Raises LoadError if it is missing or damaged."""
    file_size(path)
    try:
        # The library checks that the header is well formed, and that the tensors fill the file.
        with safetensors.safe_open(path, framework="np"):
            pages = np.memmap(path, np.uint8, mode="r").view(np.ndarray)
        start = 8 + int.from_bytes(pages[:8].tobytes(), "little")
        return SafetensorsStore(path, json.loads(pages[8:start].tobytes()), pages[start:])
    except (safetensors.SafetensorError, OSError) as error:
        raise LoadError(
            f"cannot read {path}: {error}",
            hint="write or download the file again: it is truncated or damaged",
        ) from error


def write_store(path: Path, tensors: Mapping[str, Array], note: Mapping[str, str] | None = None) -> None:
    """Write a .safetensors file, one tensor at a time; `note` is its metadata.

    The element types are those in `STORABLE`.  Raises OSError.
    """
    # Tensors with large elements come first, so that each one is aligned.
    order = sorted(tensors, key=lambda key: -tensors[key].itemsize)
    header: dict[str, Any] = {_NOTE: dict(note)} if note else {}
    end = 0
    for key in order:
        array = tensors[key]
        start, end = end, end + array.nbytes
        dtype = SPELLINGS[name_of(array.dtype)]
        header[key] = {"dtype": dtype, "shape": [*array.shape], "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for key in order:
            file.write(np.ascontiguousarray(tensors[key]).reshape(-1).view(np.uint8).data)


# -- slot contents ---------------------------------------------------------------------------------

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
            dtype=dtype,
            shape=shape,
            strings=[
                item.decode("utf-8", "surrogateescape") if isinstance(item, bytes) else str(item)
                for item in array.reshape(-1).tolist()
            ],
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


def to_json(record: object) -> str:
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
