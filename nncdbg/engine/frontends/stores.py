"""Stores: lazy sources of referenced data, as arrays by key; their files are in the folder of the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Protocol

from nncdbg.dtypes import name_of
from nncdbg.errors import LoadError
from nncdbg.ir.records import Array, TensorType


class Store(Protocol):
    """Named tensors on disk or in memory.

    `read` returns a read-only array (memory-mapped if the format allows it), and raises LoadError for an
    unknown key, or for data that is missing, too short, or outside its folder.
    """

    def keys(self) -> Iterable[str]: ...

    def type(self, key: str) -> TensorType: ...

    def read(self, key: str) -> Array: ...


@dataclass(frozen=True, slots=True)
class ArrayStore:
    """A `Store` of arrays in memory."""

    arrays: Mapping[str, Array]

    def keys(self) -> Iterable[str]:
        return self.arrays.keys()

    def type(self, key: str) -> TensorType:
        array = self.read(key)
        return TensorType(name_of(array.dtype), array.shape)

    def read(self, key: str) -> Array:
        if key not in self.arrays:
            raise LoadError(f'there is no tensor "{key}"')
        return self.arrays[key]


def path_inside(location: str, folder: Path) -> Path | None:
    """Return the resolved path of the file that a model in `folder` names; None if it is not below `folder`.

    Raises OSError, ValueError or RuntimeError for an invalid path.
    """
    # Both flavours, since a model made on one system may be read on the other.
    flavours = (PurePosixPath(location), PureWindowsPath(location))
    if any(flavour.anchor or ".." in flavour.parts for flavour in flavours):
        return None
    path = (folder / location).resolve()
    return path if path.is_relative_to(folder.resolve()) else None
