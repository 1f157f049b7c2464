"""Safetensors files as stores."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from nncdbg.engine.dtypes import NUMPY
from nncdbg.engine.errors import LoadError
from nncdbg.engine.frontends.onnx_file import file_size
from nncdbg.engine.graph import Array, TensorType

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

STORABLE = frozenset(_NAMES.values())
"""Element types that safetensors supports; others need another form."""

_FOREIGN = frozenset({"f8e4m3fn", "f8e5m2", "f8e8m0fnu"})
"""Supported types that the library cannot convert to NumPy."""


class SafetensorsStore:
    """`Store` over an opened safetensors file."""

    def __init__(self, path: Path, file: Any) -> None:
        self._path = path
        self._file = file
        self._keys = frozenset(file.keys())

    def keys(self) -> Iterable[str]:
        return sorted(self._keys)

    def type(self, key: str) -> TensorType:
        """Return the tensor's type from the file's header; LoadError for an unknown key or element type."""
        part = self._file.get_slice(self._known(key))
        name = _NAMES.get(part.get_dtype())
        if name is None:
            raise LoadError(
                f'tensor "{key}" of {self._path} has the unsupported element type {part.get_dtype()}'
            )
        return TensorType(name, tuple(part.get_shape()))

    def read(self, key: str) -> Array:
        """Return the tensor, read-only.  Raises LoadError for an unknown key."""
        type_ = self.type(key)
        array: Array = self._bytes_of(key, type_) if type_.dtype in _FOREIGN else self._file.get_tensor(key)
        array.flags.writeable = False
        return array

    def _bytes_of(self, key: str, type_: TensorType) -> Array:
        """Read a tensor of a type that the library cannot convert to NumPy, at the offset in the header."""
        with self._path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            start, _ = json.loads(file.read(length))[key]["data_offsets"]
            file.seek(8 + length + start)
            shape = tuple(self._file.get_slice(key).get_shape())
            return np.fromfile(file, NUMPY[type_.dtype], math.prod(shape)).reshape(shape)

    def note(self) -> dict[str, str]:
        """Return the metadata in the file's header."""
        return self._file.metadata() or {}

    def _known(self, key: str) -> str:
        if key not in self._keys:
            raise LoadError(f'{self._path} has no tensor "{key}"', hint="check the `store` line of the text")
        return key


def open_store(path: Path) -> SafetensorsStore:
    """Return the tensors of a .safetensors file.  Raises LoadError if it is missing or damaged."""
    file_size(path)
    try:
        return SafetensorsStore(path, safetensors.safe_open(path, framework="np"))
    except (safetensors.SafetensorError, OSError) as error:
        raise LoadError(
            f"cannot read {path}: {error}", hint="download the file again: it is truncated or damaged"
        ) from error
