"""Element types: the short name in program text, the NumPy dtype, the ONNX number.

bfloat16, the float8 family and the 4-bit types come from `ml_dtypes`, which registers them
with NumPy.  ONNX numbers are `TensorProto.DataType` of ONNX 1.23.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

_TABLE: tuple[tuple[str, Any, int], ...] = (
    ("f32", np.float32, 1),
    ("u8", np.uint8, 2),
    ("i8", np.int8, 3),
    ("u16", np.uint16, 4),
    ("i16", np.int16, 5),
    ("i32", np.int32, 6),
    ("i64", np.int64, 7),
    ("str", np.object_, 8),
    ("bool", np.bool_, 9),
    ("f16", np.float16, 10),
    ("f64", np.float64, 11),
    ("u32", np.uint32, 12),
    ("u64", np.uint64, 13),
    ("c64", np.complex64, 14),
    ("c128", np.complex128, 15),
    ("bf16", ml_dtypes.bfloat16, 16),
    ("f8e4m3fn", ml_dtypes.float8_e4m3fn, 17),
    ("f8e4m3fnuz", ml_dtypes.float8_e4m3fnuz, 18),
    ("f8e5m2", ml_dtypes.float8_e5m2, 19),
    ("f8e5m2fnuz", ml_dtypes.float8_e5m2fnuz, 20),
    ("u4", ml_dtypes.uint4, 21),
    ("i4", ml_dtypes.int4, 22),
    ("f4e2m1fn", ml_dtypes.float4_e2m1fn, 23),
    ("f8e8m0fnu", ml_dtypes.float8_e8m0fnu, 24),
    ("u2", ml_dtypes.uint2, 25),
    ("i2", ml_dtypes.int2, 26),
)

NUMPY: dict[str, np.dtype[Any]] = {name: np.dtype(dtype) for name, dtype, _ in _TABLE}
"""Short name to NumPy dtype."""

ONNX: dict[str, int] = {name: number for name, _, number in _TABLE}
"""Short name to ONNX `TensorProto.DataType`."""

FROM_ONNX: dict[int, str] = {number: name for name, _, number in _TABLE}
"""ONNX `TensorProto.DataType` to short name."""

_NAMES: dict[np.dtype[Any], str] = {dtype: name for name, dtype in NUMPY.items()}

FLOATS = frozenset(name for name in NUMPY if name[0] == "f" or name == "bf16")
COMPLEX = frozenset({"c64", "c128"})
SIGNED = frozenset(name for name in NUMPY if name[0] == "i")
UNSIGNED = frozenset(name for name in NUMPY if name[0] == "u")
INTEGERS = SIGNED | UNSIGNED


def integer_range(name: str) -> tuple[int, int]:
    """Return the least and the greatest value of an integer type, including types below one byte."""
    bits = int(name[1:])
    return (0, (1 << bits) - 1) if name[0] == "u" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def largest(name: str) -> float:
    """Return the largest finite number of a float type."""
    return float(ml_dtypes.finfo(NUMPY[name]).max)


_REGISTERED: dict[Any, str] = {}


def register_dtypes(names: Mapping[Any, str]) -> None:
    """Register the short names of another library's dtypes, for `name_of`."""
    _REGISTERED.update(names)


def name_of(dtype: Any) -> str:
    """Return the short name of a NumPy or registered dtype; strings of any width are `str`.

    Raises KeyError for a dtype that a graph cannot hold, such as a structured one.
    """
    if not isinstance(dtype, (np.dtype, type)) and dtype in _REGISTERED:
        return _REGISTERED[dtype]
    resolved = np.dtype(dtype)
    if resolved.kind in "US":
        return "str"
    name = _NAMES.get(resolved.newbyteorder("=") if resolved.kind in "iufc" else resolved)
    if name is None:
        raise KeyError(f"no tensor type corresponds to the NumPy dtype {resolved}")
    return name
