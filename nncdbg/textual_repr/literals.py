"""Data in the text: exact conversion of numbers, strings and arrays in both directions.

Floats are printed with the fewest digits that read back to the same bits of their type. NaNs other than the
plain quiet NaN are printed as bits.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from nncdbg.dtypes import COMPLEX, FLOATS, INTEGERS, NUMPY, integer_range, name_of
from nncdbg.ir.records import Array, Inline, MapType, OptionalType, SequenceType, TensorType
from nncdbg.text.lexemes import quote, quote_bytes
from nncdbg.text.rounding import lost
from nncdbg.text.types import print_type


@dataclass(frozen=True, slots=True)
class NanBits:
    """A NaN given by its bits, ``nan:0x7fc00001``."""

    bits: int


@dataclass(frozen=True, slots=True)
class Pair:
    """A complex number, ``(real, imaginary)``."""

    parts: tuple[Any, Any]


class Misfit(Exception):
    """Raised for data that its type cannot represent; has a message and a hint."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def single(value: float) -> float | None:
    """Return `value` rounded to f32, or None if it is finite and overflows."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return None
    return rounded


def attribute_text(value: Any) -> str:
    """Return the text of an attribute value; lists are nested, tensors and types are marked as such.

    A float has its shortest f32 text, or one with ``:f64`` if it is inexact in f32.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            return repr(value)
        if single(value) != value:
            return f"{value!r}:f64"
        short = str(np.float32(value))
        return short if single(float(short)) == value else repr(value)
    if isinstance(value, tuple):
        return f"[{','.join(map(attribute_text, value))}]"
    if isinstance(value, bytes):
        return quote_bytes(value)
    if isinstance(value, (TensorType, SequenceType, OptionalType, MapType)):
        return f"type({print_type(value)})"
    if isinstance(value, Inline):
        array = value.array
        return f"{print_type(TensorType(name_of(array.dtype), array.shape))} {array_text(array)}"
    return literal_text(value)


def literal_text(data: Any) -> str:
    """Return the text of a literal operand. Its floats are f64 and are rounded to the type of the operand."""
    if isinstance(data, bool):
        return "true" if data else "false"
    if isinstance(data, (int, float)):
        return repr(data)
    if isinstance(data, str):
        return quote(data)
    return f"[{', '.join(map(literal_text, data))}]"


def array_text(array: Array) -> str:
    """Return the elements of `array`, nested by its shape; ``[]`` if it is empty."""
    if array.size == 0:
        return "[]"
    texts = _element_texts(np.ascontiguousarray(array).reshape(-1))
    for size in reversed(array.shape):
        texts = [f"[{', '.join(texts[at : at + size])}]" for at in range(0, len(texts), size)]
    return texts[0]


def _element_texts(flat: Array) -> list[str]:
    dtype = name_of(flat.dtype)
    if dtype in FLOATS:
        return _float_texts(flat)
    if dtype in COMPLEX:
        parts = _float_texts(flat.view(np.float32 if dtype == "c64" else np.float64))
        return [f"({real}, {imaginary})" for real, imaginary in zip(parts[::2], parts[1::2], strict=True)]
    if dtype == "str":
        return [quote_bytes(item) if isinstance(item, bytes) else quote(item) for item in flat.tolist()]
    if dtype == "bool":
        return ["true" if item else "false" for item in flat.tolist()]
    return list(map(str, flat.astype(np.uint64 if dtype == "u64" else np.int64).tolist()))


def _bits(flat: Array) -> Array:
    return flat.view(f"u{flat.dtype.itemsize}")


def _rounded(values: Sequence[float], dtype: np.dtype[Any]) -> Array:
    """Round the f64 `values` to `dtype`; printing and parsing both use this function."""
    with np.errstate(all="ignore"):
        return np.array(values, np.float64).astype(dtype)


def _float_texts(flat: Array) -> list[str]:
    with np.errstate(all="ignore"):
        wide = flat.astype(np.float64)
    texts = list(map(repr, wide.tolist()))
    if flat.dtype != np.float64:
        _shorten(texts, flat, wide)
    plain_nan = _bits(_rounded([math.nan], flat.dtype))[0]
    digits = 2 * flat.dtype.itemsize
    for index in np.flatnonzero(np.isnan(wide)).tolist():
        bits = _bits(flat)[index]
        if bits != plain_nan:
            texts[index] = f"nan:0x{int(bits):0{digits}x}"
    return texts


_WHOLE = 1e6
"""Limit for printing whole numbers in full: with the digits needed for f8e4m3fn, 448.0 would be 450.0."""


def _shorten(texts: list[str], flat: Array, wide: Array) -> None:
    """Replace each text by the shortest one that rounds to the same bits; 9 digits suffice for f32."""
    values = wide.tolist()
    with np.errstate(all="ignore"):
        whole = (wide == np.rint(wide)) & (np.abs(wide) < _WHOLE)
    left = np.flatnonzero(np.isfinite(wide) & ~whole)
    for precision in range(1, 10):
        short = [float(f"{values[index]:.{precision}g}") for index in left.tolist()]
        same = _bits(_rounded(short, flat.dtype)) == _bits(flat[left])
        for place in np.flatnonzero(same).tolist():
            texts[int(left[place])] = repr(short[place])
        left = left[~same]
        if not left.size:
            return


def array_of(data: Any, type: TensorType) -> Array:
    """Return a read-only array of `type` with the elements of the nested tuples `data`.

    Floats are rounded to the nearest value of the type. Raises Misfit if sizes or elements do not match.
    """
    flat, sizes = _flatten(data)
    shape = _shape_of(sizes, flat, type)
    array = _flat_array(flat, type.dtype).reshape(shape)
    array.flags.writeable = False
    return array


def rounding_note(data: Any, array: Array) -> str:
    """Return what the element type of a constant loses of its numbers `data`; empty if it is little."""
    name = name_of(array.dtype)
    if name not in FLOATS or not array.size:
        return ""
    with np.errstate(invalid="ignore"):  # Some patterns of NaN signal.
        sizes = np.abs(array.astype(np.float64))
    if np.all((sizes >= float(ml_dtypes.finfo(array.dtype).smallest_normal)) & np.isfinite(sizes)):
        return ""
    flat, _ = _flatten(data)
    try:
        given = np.array([float(item) if isinstance(item, (int, float)) else 0.0 for item in flat])
    except OverflowError:  # An integer of hundreds of digits.
        return ""
    return lost(given, array.reshape(-1), "the constant")


def filled(type: TensorType, number: int | float) -> str:
    """Return an op that makes a tensor of `type` with the same number in each element; ``?`` becomes 1."""
    sizes = [str(size) if isinstance(size, int) else "1" for size in type.shape or ()]
    one = print_type(TensorType(type.dtype, (1,)))
    text = literal_text(number if type.dtype in INTEGERS else float(number))
    return f"ConstantOfShape([{', '.join(sizes)}], value={one} [{text}])"


def type_of_data(data: Any) -> TensorType:
    """Return the type that a literal without a type most likely has; whole numbers are i64."""
    flat, sizes = _flatten(data)
    found = {type(item) for item in flat}
    if Pair in found:
        return TensorType("c64", sizes)
    plain = ((bool, "bool"), (int, "i64"), (str, "str"), (bytes, "str"))
    return TensorType(next((name for kind, name in plain if found == {kind}), "f32"), sizes)


def _flatten(data: Any) -> tuple[list[Any], tuple[int, ...]]:
    sizes: list[int] = []
    flat = [data]
    while any(isinstance(item, tuple) for item in flat):
        if not all(isinstance(item, tuple) for item in flat):
            raise Misfit("numbers and lists are mixed", "use the same depth in all rows")
        lengths = {len(item) for item in flat}
        if len(lengths) > 1:
            hint = f"use rows of equal length; the lengths are {sorted(lengths)}"
            raise Misfit("the rows of the array differ in length", hint)
        sizes.append(lengths.pop())
        flat = [element for item in flat for element in item]
    return flat, tuple(sizes)


def _shape_of(sizes: tuple[int, ...], flat: list[Any], declared: TensorType) -> tuple[int, ...]:
    shape, count = declared.shape, len(flat)
    if shape is None:
        return sizes
    if count == 0 and 0 in shape and sizes:
        if not all(isinstance(dim, int) for dim in shape):
            raise Misfit("the sizes of an empty array are unknown", "write all its sizes as numbers")
        return tuple(int(dim) for dim in shape if dim is not None)
    fits = len(shape) == len(sizes) and all(
        size == dim for dim, size in zip(shape, sizes, strict=True) if isinstance(dim, int)
    )
    if not fits:
        found = ",".join(map(str, sizes))
        written = print_type(TensorType(declared.dtype, sizes))
        hint = f"the declared type is {print_type(declared)}; the type of this data is {written}"
        if not sizes and declared.dtype not in COMPLEX | {"str", "bool"} and type(flat[0]) in (int, float):
            hint += f"; to fill it, write {filled(declared, flat[0])}"
        elif isinstance(flat[0], Pair) and len(sizes) == len(shape) - 1 and declared.dtype not in COMPLEX:
            hint = f"write a list as [{literal_text(flat[0].parts)[1:-1]}]"
        raise Misfit(f"the data has the sizes [{found}]", hint)
    return sizes


def _flat_array(flat: list[Any], dtype: str) -> Array:
    if dtype in FLOATS:
        return _floats(flat, NUMPY[dtype])
    if dtype in COMPLEX:
        parts = [part for item in flat for part in (item.parts if isinstance(item, Pair) else (item, 0.0))]
        real = np.dtype(np.float32 if dtype == "c64" else np.float64)
        return _floats(parts, real).view(NUMPY[dtype])
    if dtype == "str":
        for item in flat:
            if not isinstance(item, (str, bytes)):
                raise Misfit(f"{_shown(item)} is not a string", f"write {quote(_shown(item))}")
        array = np.empty(len(flat), np.object_)
        array[:] = flat
        return array
    wanted = bool if dtype == "bool" else int
    for item in flat:
        if type(item) is not wanted:
            hint = f"the declared type is {dtype}"
            if item in (0, 1) or (wanted is int and isinstance(item, float) and item.is_integer()):
                hint += f": write {literal_text(wanted(item))}"
            raise Misfit(f"{_shown(item)} is not {_ELEMENTS[wanted]}", hint)
    if wanted is bool:
        return np.array(flat, np.bool_)
    low, high = integer_range(dtype)
    for item in flat:
        if not low <= item <= high:
            raise Misfit(f"{item} is out of range for {dtype}", f"use a number from {low} to {high}")
    return np.array(flat, np.uint64 if dtype == "u64" else np.int64).astype(NUMPY[dtype])


_ELEMENTS = {bool: "true or false", int: "an integer"}


def _floats(flat: list[Any], dtype: np.dtype[Any]) -> Array:
    values = [_float(item) for item in flat]
    array = _rounded(values, dtype)
    with np.errstate(all="ignore"):
        back = array.astype(np.float64)
    # f4e2m1fn has neither NaN nor inf and saturates; 7 is halfway from its maximum, 6, to 8.
    saturated = np.abs(values) > 7 if dtype == NUMPY["f4e2m1fn"] else np.False_
    nan_lost = np.isnan(values) & ~np.isnan(back)
    inf_lost = np.isinf(values) & (back != values)
    lost = (np.isfinite(values) & ~np.isfinite(back)) | saturated | nan_lost | inf_lost
    if lost.any():
        number = _shown(flat[int(lost.argmax())])
        raise Misfit(f"{name_of(dtype)} cannot represent {number}", "choose a wider element type")
    for index, item in enumerate(flat):
        if isinstance(item, NanBits):
            array[index : index + 1] = _nan_of(item.bits, dtype)
    return array


def _float(item: Any) -> float:
    if isinstance(item, NanBits):
        return math.nan
    hint = "write a number such as 1.5, -0.0, inf or nan"
    if type(item) not in (int, float):
        raise Misfit(f"{_shown(item)} is not a float", hint)
    try:
        return float(item)
    except OverflowError as error:
        raise Misfit("the number is too large for a float", hint) from error


def _nan_of(bits: int, dtype: np.dtype[Any]) -> Array:
    if bits < 1 << (8 * dtype.itemsize):
        array = np.array([bits], f"u{dtype.itemsize}").view(dtype)
        with np.errstate(all="ignore"):
            if np.isnan(array.astype(np.float64))[0]:
                return array
    raise Misfit(f"nan:0x{bits:x} is not a NaN of {name_of(dtype)}", "write the bits of the element type")


def _shown(item: Any) -> str:
    if isinstance(item, Pair):
        return "a complex number"
    if isinstance(item, NanBits):
        return f"nan:0x{item.bits:x}"
    if isinstance(item, bytes):
        return quote_bytes(item)
    return literal_text(item)
