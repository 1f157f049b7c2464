"""Safetensors files as stores of memory-mapped tensors, and writing them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from nncdbg.engine.dtypes import NUMPY, name_of
from nncdbg.engine.errors import LoadError
from nncdbg.engine.frontends.onnx_file import file_size
from nncdbg.ir.records import Array, TensorType

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
