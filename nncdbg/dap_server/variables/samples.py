"""Sampling and encoding of a tensor's elements for a view."""

from __future__ import annotations

import base64
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.engine import dtypes
from nncdbg.engine.errors import UsageError
from nncdbg.presentation.elements import json_number

if TYPE_CHECKING:
    from nncdbg.ir.records import Array


def sampling(shape: tuple[int, ...], most: int) -> list[int]:
    """A power-of-two step for each axis, so that at most `most` elements remain; long axes first."""
    steps = [1] * len(shape)
    if 0 in shape:
        return steps

    def left(axis: int) -> int:
        return -(-shape[axis] // steps[axis])

    while math.prod(map(left, range(len(shape)))) > most:
        steps[max(range(len(shape)), key=left)] *= 2
    return steps


def packed(array: Array) -> tuple[str, str]:
    """(`f32`, bytes in base64): the elements in C order, little-endian.

    Elements of one to eight bytes keep their type; narrower ones and narrow floats become `i8` and `f32`,
    bools `u8`, complex ones pairs.  Raises UsageError for strings.
    """
    kind = array.dtype.kind
    if kind in "OUST":
        raise UsageError("strings cannot be sent as bytes", hint="request `json`")
    if kind == "V":
        array = _widened(array)
    elif kind == "f" and array.dtype.itemsize < 4:
        array = array.astype(np.float32)
    elif kind == "b":
        array = array.view(np.uint8)
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    if kind == "c":
        little = little.reshape(-1).view(f"<f{array.dtype.itemsize // 2}")
    return dtypes.name_of(little.dtype), base64.b64encode(little.data).decode("ascii")


def json_numbers(array: Array) -> list[Any]:
    """The elements in C order as JSON values."""
    flat = array.reshape(-1)
    if flat.dtype.kind == "c":
        return [list(map(json_number, (each.real, each.imag))) for each in flat.tolist()]
    if flat.dtype.kind in "OUST":
        return list(map(str, flat.tolist()))
    if flat.dtype.kind == "V":
        flat = _widened(flat)
    listed: list[Any] = flat.tolist()
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        return list(map(json_number, listed))
    return listed


def _widened(array: Array) -> Array:
    """Convert integers narrower than a byte, and floats that only `ml_dtypes` has, to NumPy's own types."""
    return array.astype(np.int8 if dtypes.name_of(array.dtype) in dtypes.INTEGERS else np.float32)
