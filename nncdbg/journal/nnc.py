"""The table `tensors` of nnc (lib/nnc of ccv): named tensors in any SQLite file, a journal included.

The columns are those of `ccv_nnc_tensor_write` in ccv_nnc_tensor_io.c: `type` has the memory in its low 32
bits and a codec in its high 32 bits, `datatype` an element type in its low 32 bits, `dim` twelve native
32-bit sizes that end with zeros, and `data` the elements without padding.  The table has the last tensor of
each name, and no history.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import closing
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from nncdbg.dtypes import NUMPY, name_of
from nncdbg.errors import LoadError, UsageError
from nncdbg.ir.records import Array
from nncdbg.journal.blobs import contiguous
from nncdbg.journal.connection import check_file, connect, explained

CREATE = (
    "CREATE TABLE IF NOT EXISTS tensors "
    "(name TEXT, type INTEGER, format INTEGER, datatype INTEGER, dim BLOB, data BLOB, PRIMARY KEY (name))"
)

DATATYPES = {
    "u8": 0x01000,
    "i32": 0x02000,
    "f32": 0x04000,
    "i64": 0x08000,
    "f64": 0x10000,
    "f16": 0x20000,
    "bf16": 0x80000,
}
"""nnc's numbers of element types; it has no others, apart from quantized ones."""

_NAMES = {number: name for name, number in DATATYPES.items()}

_CPU_MEMORY = 1
_NCHW = 1
_AXES = 12
_LOW = 0xFFFFFFFF


def read_tensors(path: str | PathLike[str]) -> dict[str, Array]:
    """Return the tensors of a file by name, in the order of their names.

    Raises UsageError for a missing file; LoadError for a file without the table, and for a tensor with a
    codec or an element type that is not in `DATATYPES`.
    """
    file = Path(path)
    check_file(file)
    with explained(file, "read"), closing(connect(file, "ro")) as connection:
        tables = connection.execute("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'tensors'")
        if tables.fetchone() is None:
            raise LoadError(f"{file} has no table `tensors` of nnc")
        rows = connection.execute("SELECT name, type, datatype, dim, data FROM tensors ORDER BY name")
        return {name: _array(file, name, *columns) for name, *columns in rows}


def write_tensors(path: str | PathLike[str], tensors: Mapping[str, Any]) -> None:
    """Write tensors to a file in one transaction; those of the same names are replaced.

    nnc has no scalars: a scalar is written with the sizes [1].  Raises UsageError for an empty tensor, for
    more than 12 axes, and for an element type that is not in `DATATYPES`.
    """
    file = Path(path)
    rows = [_row(name, value) for name, value in tensors.items()]
    with explained(file, "write"), closing(connect(file, "rwc")) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(CREATE)
        connection.executemany(
            "REPLACE INTO tensors (name, type, format, datatype, dim, data) VALUES (?, ?, ?, ?, ?, ?)", rows
        )
        connection.execute("COMMIT")


def _row(name: str, value: Any) -> tuple[Any, ...]:
    array = contiguous(name, value)
    datatype = DATATYPES.get(name_of(array.dtype))
    if datatype is None:
        raise UsageError(
            f'nnc has no element type for "{name}", which is {name_of(array.dtype)}',
            hint=f"convert it to one of {', '.join(DATATYPES)}",
        )
    sizes = array.shape or (1,)
    if not array.size or len(sizes) > _AXES:
        raise UsageError(f'nnc has no tensor like "{name}", which has the sizes {[*array.shape]}')
    dim = np.zeros(_AXES, np.int32)
    dim[: len(sizes)] = sizes
    return name, _CPU_MEMORY, _NCHW, datatype, dim.tobytes(), array.reshape(-1).view(np.uint8).data


def _array(file: Path, name: str, kind: int, datatype: int, dim: bytes, data: bytes) -> Array:
    failed = f'{file}: the tensor "{name}"'
    try:
        sizes = np.frombuffer(dim, np.int32).tolist()
        codec, number = kind >> 32 & _LOW, datatype & _LOW
    except (TypeError, ValueError):
        raise LoadError(f"{failed} is damaged: its sizes or its type cannot be read") from None
    if codec:
        raise LoadError(
            f"{failed} is encoded with the codec {codec:#x}", hint="write the file without a codec in nnc"
        )
    if number not in _NAMES:
        raise LoadError(f"{failed} has the element type {number:#x}, which is quantized or unknown")
    shape = tuple(sizes[: sizes.index(0)] if 0 in sizes else sizes)
    dtype = NUMPY[_NAMES[number]]
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise LoadError(f"{failed} is damaged: {len(data)} bytes do not fill {_NAMES[number]}{[*shape]}")
    return np.frombuffer(data, dtype).reshape(shape)
