"""Tensors as files: `.npy`, `.npz`, `.csv`, `.txt` and `.png`, written atomically."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from nncdbg.errors import UsageError
from nncdbg.ir.records import Array, Map
from nncdbg.presentation.elements import is_text, type_of
from nncdbg.process.files import new_file

MAX_TEXT_ELEMENTS = 10_000_000
"""Maximum number of elements of a tensor written as text."""


def write_tensors(path: Path, tensors: Mapping[str, Any]) -> Path:
    """Write tensors by name to a file with a suffix of `FORMATS`; return its path.

    Only `.npz` holds several tensors. Without a known suffix, `.npy` is added. Raises UsageError if the
    format does not support the tensors or the file cannot be written.
    """
    if path.suffix.lower() not in FORMATS and not os.path.isdir(path):
        path = path.with_name(path.name + ".npy")
    suffix = path.suffix.lower()
    if len(tensors) > 1 and suffix != ".npz":
        raise UsageError(f"a {suffix} file stores one tensor, not {len(tensors)}", hint="write a .npz file")
    arrays = {name: np.asarray(value) for name, value in tensors.items() if not isinstance(value, list)}
    unfit = len(arrays) < len(tensors) or (
        suffix in (".npy", ".npz") and any(is_text(array) for array in arrays.values())
    )
    if unfit or any(array.dtype.hasobject and not is_text(array) for array in arrays.values()):
        raise UsageError(
            f"{path}: only tensors of numbers can be saved", hint="show the value with `print` instead"
        )
    with new_file(path) as file:
        FORMATS[suffix](file, arrays)
    return path


def maps_as_json(content: Sequence[Map]) -> list[dict[str, Any]]:
    """Return maps as JSON objects; NaN and infinite values become None."""
    return [
        {
            str(key): None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in each.items
        }
        for each in content
    ]


def write_maps(path: Path, content: Sequence[Map]) -> Path:
    """Write a sequence of maps to a JSON file; return its path."""
    with new_file(path) as file:
        file.write(json.dumps(maps_as_json(content), indent=1).encode())
    return path


def _npy(file: IO[bytes], arrays: Mapping[str, Array]) -> None:
    (array,) = arrays.values()
    np.save(file, array, allow_pickle=False)


def _npz(file: IO[bytes], arrays: Mapping[str, Array]) -> None:
    # Names may equal parameter names of savez, so entries are written one by one.
    import zipfile

    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)


def _csv(file: IO[bytes], arrays: Mapping[str, Array]) -> None:
    (array,) = arrays.values()
    _check_size(array)
    if array.ndim > 2:
        raise UsageError(
            f"a .csv file needs 1 or 2 axes, not {type_of(array)}",
            hint="choose a slice, as in `dump %h[0, 0] FILE.csv`, or write a .txt or .npy file",
        )
    for row in array.reshape(-1, 1) if array.ndim < 2 else array:
        cells = (f'"{_cell(cell)}"' if is_text(array) else _cell(cell) for cell in row)
        file.write((",".join(cells) + "\n").encode())


def _txt(file: IO[bytes], arrays: Mapping[str, Array]) -> None:
    """Write a line per row; a comment with the leading indices precedes each matrix."""
    ((name, array),) = arrays.items()
    _check_size(array)
    file.write(f"# {name} {type_of(array)}\n".encode())
    rows = array.reshape(*array.shape[:-1], -1) if array.ndim else array.reshape(1, 1)
    for index in np.ndindex(rows.shape[:-2]):
        if index:
            file.write(f"# [{', '.join(map(str, index))}]\n".encode())
        for row in np.atleast_2d(rows[index]):
            file.write((" ".join(map(_cell, row)) + "\n").encode())


def _png(file: IO[bytes], arrays: Mapping[str, Array]) -> None:
    from nncdbg.presentation.png_images import png

    (array,) = arrays.values()
    file.write(png(array))


def _cell(value: Any) -> str:
    """Return an element with enough digits to read it back exactly."""
    return str(value).replace('"', '""')


def _check_size(array: Array) -> None:
    if array.size > MAX_TEXT_ELEMENTS:
        raise UsageError(
            f"{array.size} elements are too many for text (at most {MAX_TEXT_ELEMENTS})",
            hint="choose a slice, or write a .npy file",
        )


FORMATS: dict[str, Callable[[IO[bytes], Mapping[str, Array]], None]] = {
    ".npy": _npy,
    ".npz": _npz,
    ".csv": _csv,
    ".txt": _txt,
    ".png": _png,
}
"""Maps suffixes to writers."""
