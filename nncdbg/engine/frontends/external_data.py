"""ONNX external data: tensors in files beside the model, memory-mapped, never outside its folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nncdbg.engine.errors import LoadError
from nncdbg.engine.frontends.confinement import path_inside
from nncdbg.engine.graph import Array


@dataclass
class ExternalData:
    """Reads the data of TensorProtos with `data_location` EXTERNAL, all below `folder`."""

    folder: Path | None
    _maps: dict[Path, Array] = field(init=False, default_factory=dict, repr=False)
    _confined: dict[str, tuple[Path, int]] = field(init=False, default_factory=dict, repr=False)

    def place(self, tensor: Any, key: str, count: int) -> tuple[Path, int]:
        """Return the file and the offset of `count` bytes.  Raises LoadError unless all of them exist."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if not location:
            raise LoadError(
                f'tensor "{key}" has external data, but no file name',
                hint="export the model again: it is damaged",
            )
        path, size = self._file(location, key)
        offset = _number(entries, "offset", 0, key)
        length = _number(entries, "length", count, key)
        if length != count:
            raise LoadError(
                f'tensor "{key}" needs {count} bytes, but the model assigns it {length} bytes of {location}',
                hint="export the model again: it is damaged",
            )
        if offset + length > size:
            raise LoadError(
                f'tensor "{key}" needs bytes {offset} to {offset + length} of {path}, which has {size} bytes',
                hint="copy the data file again: it is truncated, or belongs to another model",
            )
        return path, offset

    def read(self, tensor: Any, key: str, count: int) -> Array:
        """Return the tensor's `count` bytes, u8[count], as a read-only view of the mapped file."""
        path, offset = self.place(tensor, key, count)
        if count == 0:
            return np.empty(0, np.uint8)
        if path not in self._maps:
            try:
                self._maps[path] = np.memmap(path, np.uint8, mode="r").view(np.ndarray)
            except (OSError, ValueError) as error:
                raise LoadError(f'cannot memory-map {path} for tensor "{key}": {error}') from error
        return self._maps[path][offset : offset + count]

    def _file(self, location: str, key: str) -> tuple[Path, int]:
        """Return the file named by `location`, and its size; checked once."""
        if location not in self._confined:
            path = self._resolve(location, key)
            if path.exists() and not path.is_file():
                raise LoadError(
                    f'tensor "{key}" is stored in {path}, which is not a file',
                    hint="export the model again: it is damaged",
                )
            if not path.exists():
                raise LoadError(
                    f'tensor "{key}" is stored in {path}, which does not exist',
                    hint=f'copy the weight file "{location}" to the folder of the model',
                )
            self._confined[location] = path, path.stat().st_size
        return self._confined[location]

    def _resolve(self, location: str, key: str) -> Path:
        if self.folder is None:
            raise LoadError(
                f'tensor "{key}" is stored in "{location}", but a model loaded from memory has no folder',
                hint="load the model from its file",
            )
        try:
            path = path_inside(location, self.folder)
        except (OSError, ValueError, RuntimeError) as error:
            raise LoadError(f'tensor "{key}" has the invalid file name "{location!r}": {error}') from error
        if path is None:
            raise _outside(key, location, self.folder)
        return path


def _outside(key: str, location: str, folder: Path) -> LoadError:
    return LoadError(
        f'tensor "{key}" is stored in "{location}", outside the model\'s folder {folder}',
        hint="move the file into the model's folder; a path outside the folder may be an attack",
    )


def _number(entries: dict[str, str], name: str, otherwise: int, key: str) -> int:
    text = entries.get(name, str(otherwise))
    if not (text.isascii() and text.isdigit()):
        raise LoadError(
            f'tensor "{key}" has invalid external data: {name} is "{text}"',
            hint="export the model again: it is damaged",
        )
    return int(text)
