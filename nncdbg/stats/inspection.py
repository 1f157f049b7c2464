"""The check after each kernel: statistics, guards and uninitialized elements of a fresh buffer.

A fresh buffer, and the guards on both sides of it, are filled so that every 16-bit little-endian word
is 0x7FFF: the byte at an even address is 0xFF, at an odd one 0x7F. In f16, bf16, f32, f64, e4m3fn and
e5m2 that is a quiet NaN. In integers it is an unlikely number, except in narrow ones (i16: 32767, i8:
-1 and 127), where a match is only a suspicion to confirm. In a bool any byte above 1 is uninitialized.
The `fnuz` formats have one NaN, 0x80, which fills them.

The row is ten float64 in the order of `Summary`: min, max, mean, std, nan, posinf, neginf, zero,
subnormal, count; the first four are NaN without a finite element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import IntFlag
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nncdbg import dtypes
from nncdbg.errors import UsageError
from nncdbg.ir.records import Array
from nncdbg.stats.preparation import Kernel, kernel_of, looked_at
from nncdbg.stats.summary import Summary, summarize_plain

PATTERN_WORD = 0x7FFF
"""Each 16-bit little-endian word of a fresh buffer and of its guards."""

ROW_SIZE = 10
"""Number of float64 in a row of statistics."""

_EVEN_BYTE, _ODD_BYTE, _FNUZ_BYTE = 0xFF, 0x7F, 0x80

Inspector: TypeAlias = Callable[[int, int, int, int], int]
"""``(address, count, guard_bytes, row_address) -> flags``."""


class Flag(IntFlag):
    """The result of an inspection. An uninitialized float is a NaN too, so it sets both flags."""

    NAN = 1
    INF = 2
    UNWRITTEN = 4
    GUARD_BEFORE = 8
    GUARD_AFTER = 16


def inspector(dtype_name: str) -> Inspector | None:
    """Return the compiled inspection of one dtype; None until it is compiled, or if there is none.

    The inspector reads `count` elements from `address`, and `guard_bytes` bytes before the first and
    after the last one, all in one pass. It writes `ROW_SIZE` float64 to `row_address`, or skips the
    statistics if that is 0. It returns `Flag` bits as a plain int. Arguments are not validated: a wrong
    address crashes the process.
    """
    kernel = kernel_of(dtype_name)
    if kernel is None:
        return None
    return partial(kernel.entry, *kernel.leading, *(0,) * kernel.exact)


class Inspectors(dict[np.dtype[Any], "Inspector | None"]):
    """The inspectors by dtype, each stored once it is compiled; None before that."""

    def __missing__(self, dtype: np.dtype[Any]) -> Inspector | None:
        compiled = inspector(dtypes.name_of(dtype))
        if compiled is not None:
            self[dtype] = compiled
        return compiled


class FiniteTests(dict[Any, "Callable[[int, int], bool] | None"]):
    """By dtype, a function from address and count to whether no element is NaN or infinite.

    None until it is compiled.
    """

    def __missing__(self, dtype: Any) -> Callable[[int, int], bool] | None:
        name = dtypes.name_of(dtype)
        kernel = kernel_of(name)
        if kernel is None:
            return None
        test = kernel.all_finite
        if test is None:
            # One-byte floats have no faster test than the inspection.
            test = partial(_shows_finite, kernel) if name in dtypes.FLOATS else lambda address, count: True
        self[dtype] = test
        return test


def _shows_finite(kernel: Kernel, address: int, count: int) -> bool:
    return not kernel.entry(*kernel.leading, address, count, 0, 0) & int(Flag.NAN | Flag.INF)


def inspect_plain(
    array: npt.NDArray[Any],
    before: npt.NDArray[np.uint8],
    after: npt.NDArray[np.uint8],
    row: npt.NDArray[np.float64] | None = None,
) -> int:
    """Inspect in NumPy, with the same flags and the same row as an inspector.

    `array` is the flat view of the buffer, `before` and `after` are views of its guards (empty without
    guards); `row` receives `ROW_SIZE` numbers, None skips the statistics.
    """
    looked_at(array.size)
    summary = summarize_plain(array)
    if row is not None:
        row[:] = row_of(summary)
    flags = Flag.NAN * bool(summary.nan) | Flag.INF * bool(summary.posinf or summary.neginf)
    flags |= Flag.UNWRITTEN * bool(is_pattern(array).any())
    flags |= Flag.GUARD_BEFORE * (not np.all(before == _expected_bytes(before)))
    flags |= Flag.GUARD_AFTER * (not np.all(after == _expected_bytes(after)))
    return int(flags)


def row_of(summary: Summary) -> list[float]:
    """Return the row of a summary."""
    ends = (summary.min, summary.max, summary.mean, summary.std)
    counts = (summary.nan, summary.posinf, summary.neginf, summary.zero, summary.subnormal, summary.count)
    return [math.nan if end is None else float(end) for end in ends] + [float(count) for count in counts]


def summary_of(row: Sequence[float], dtype_name: str) -> Summary:
    """Return the summary in a row. Integer extremes beyond 2**53 are rounded, as the row itself is."""
    low, high, mean, std = (None if math.isnan(number) else float(number) for number in row[:4])
    counts = [int(number) for number in row[4:ROW_SIZE]]
    if dtype_name not in dtypes.FLOATS and low is not None and high is not None:
        return Summary(int(low), int(high), mean, std, *counts)
    return Summary(low, high, mean, std, *counts)


def fill(array: npt.NDArray[Any]) -> None:
    """Write the fill pattern into every byte of a contiguous array of numbers or bools, in place.

    Raises UsageError for an array that is not contiguous, is read-only, or contains objects.
    """
    raw = _bytes_of(array)
    if _is_fnuz(array.dtype):
        raw[...] = _FNUZ_BYTE
        return
    first = raw.ctypes.data & 1
    words = raw[first : raw.size - (raw.size - first) % 2].view("<u2")
    words[...] = PATTERN_WORD
    if raw.size:
        raw[0] = _ODD_BYTE if first else _EVEN_BYTE
        raw[-1] = _ODD_BYTE if (raw.ctypes.data + raw.size - 1) & 1 else _EVEN_BYTE


def is_pattern(array: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which elements still hold the fill pattern, in the array's shape; strides are arbitrary."""
    if array.dtype.hasobject:
        return np.zeros(array.shape, np.bool_)
    if array.dtype == np.bool_:
        found: npt.NDArray[np.bool_] = array.view(np.uint8) > 1
    elif _is_fnuz(array.dtype):
        found = array.view(np.uint8) == _FNUZ_BYTE
    elif array.dtype.itemsize == 1:
        found = array.view(np.uint8) == _expected_bytes(array)
    else:
        found = _words_match(array)
    return np.asarray(found)


def _words_match(array: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Match elements of two bytes or more; at an odd address the pattern's bytes are swapped."""
    size = array.dtype.itemsize
    parts, width = (2, size // 2) if array.dtype.kind == "c" else (1, size)
    even = np.frombuffer(bytes((_EVEN_BYTE, _ODD_BYTE)) * (width // 2), f"u{width}")[0]
    odd = np.frombuffer(bytes((_ODD_BYTE, _EVEN_BYTE)) * (width // 2), f"u{width}")[0]
    wanted = np.where(_odd_addresses(array), odd, even)
    if parts == 1:
        return np.asarray(array.view(f"u{width}") == wanted)
    halves = array.view([("real", f"u{width}"), ("imag", f"u{width}")])
    return np.asarray((halves["real"] == wanted) & (halves["imag"] == wanted))


def _expected_bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.where(_odd_addresses(array), np.uint8(_ODD_BYTE), np.uint8(_EVEN_BYTE))


def _odd_addresses(array: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return for each element whether it begins at an odd address."""
    odd = np.full(array.shape, array.ctypes.data & 1, np.uint8)
    for axis, (size, stride) in enumerate(zip(array.shape, array.strides, strict=True)):
        if stride & 1:
            steps = (np.arange(size) & 1).astype(np.uint8)
            odd ^= steps.reshape([-1 if i == axis else 1 for i in range(array.ndim)])
    return odd.astype(np.bool_)


def _is_fnuz(dtype: np.dtype[Any]) -> bool:
    return dtype.name.endswith("fnuz")


def _bytes_of(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    if array.dtype.hasobject or not array.flags.forc or not array.flags.writeable:
        raise UsageError(
            f"an array of {array.dtype} with strides {array.strides} cannot be filled in place",
            hint="pass a contiguous, writable array of numbers",
        )
    return array.reshape(-1, order="A").view(np.uint8)


_SMALL = 1 << 12
"""Elements up to which finding the address costs more than a product."""

_BY_PRODUCT = (np.dtype(np.float32), np.dtype(np.float64))
_NAMES = {dtype: name for name, dtype in dtypes.NUMPY.items() if name in dtypes.FLOATS | dtypes.COMPLEX}


def is_finite(array: Any) -> bool:
    """Whether no element is NaN or infinite; True for anything but a tensor of floats.

    A finite sum of squares contains no NaN or Inf. An infinite one may have overflowed, so the elements
    are then checked one by one.
    """
    dtype = getattr(array, "dtype", None)
    if dtype is None or dtype.kind in "biuO":
        return True
    if array.size <= _SMALL and dtype in _BY_PRODUCT and math.isfinite(np.vdot(array, array)):
        return True
    name = _NAMES.get(dtype)
    if name is None:
        return True
    kernel = kernel_of(name)
    if kernel is not None and kernel.all_finite is not None:
        found = array.__array_interface__
        if found["strides"] is None and array.flags.aligned:
            return bool(kernel.all_finite(found["data"][0], array.size))
    return _is_finite_plain(array)


def _is_finite_plain(array: Array) -> bool:
    looked_at(array.size)
    if array.dtype.kind == "c":
        return bool(np.isfinite(array).all())
    with np.errstate(all="ignore"):
        # One pass: a NaN or Inf in a sum persists.
        if array.dtype in _BY_PRODUCT and math.isfinite(np.add.reduce(array, axis=None)):
            return True
        return bool(np.isfinite(array).all())


def holds(value: Any, kind: str) -> bool:
    """Whether a tensor contains a NaN (kind nan) or an infinity (kind inf)."""
    if not isinstance(value, (np.ndarray, np.generic)) or value.dtype.hasobject:
        return False
    return bool(bad(np.asarray(value), kind).any())


def bad(array: Array, kind: str) -> Array:
    """Return a mask of the elements that are NaN (kind nan) or infinite (kind inf).

    The mask is all False for types without such numbers.
    """
    if array.dtype.kind != "c" and dtypes.name_of(array.dtype) not in dtypes.FLOATS:
        return np.zeros(array.shape, bool)
    return np.asarray(np.isnan(array) if kind == "nan" else np.isinf(array))
