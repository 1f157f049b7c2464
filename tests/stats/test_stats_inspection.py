from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nncdbg import dtypes
from nncdbg.errors import UsageError
from nncdbg.stats import summarize
from nncdbg.stats.inspection import (
    PATTERN_WORD,
    ROW_SIZE,
    Flag,
    fill,
    inspect_plain,
    inspector,
    is_pattern,
    row_of,
    summary_of,
)

NUMBERS = [name for name in dtypes.NUMPY if name != "str"]
COMPILED = [name for name in NUMBERS if name not in dtypes.COMPLEX]
GUARD = 64


class Buffer:
    """`count` uninitialized elements between two guards, in the layout of the debug allocator."""

    def __init__(self, name: str, count: int, guard: int = GUARD) -> None:
        dtype = dtypes.NUMPY[name]
        size = count * dtype.itemsize
        self.memory = np.zeros(size + 2 * guard, np.uint8)
        self.before, self.after = self.memory[:guard], self.memory[guard + size :]
        self.payload = self.memory[guard : guard + size]
        self.array: np.ndarray[Any, Any] = self.payload.view(dtype)
        self.address = self.memory.ctypes.data + guard
        self.guard = guard
        fill(self.memory)
        fill(self.array)

    def inspect(self, name: str) -> tuple[int, list[float]]:
        """Return the flags and the row after checking that both inspections agree."""
        row = np.full(ROW_SIZE, -1.0)
        flags = inspect_plain(self.array, self.before, self.after, row)
        run = inspector(name)
        if name in dtypes.COMPLEX:
            assert run is None
            return flags, row.tolist()
        assert run is not None
        compiled_row = np.full(ROW_SIZE, -1.0)
        arguments = self.address, self.array.size, self.guard
        assert run(*arguments, compiled_row.ctypes.data) == run(*arguments, 0) == flags
        np.testing.assert_allclose(compiled_row, row, rtol=1e-9, atol=1e-9 * float(np.nanmax(np.abs(row))))
        np.testing.assert_array_equal(compiled_row[[0, 1, *range(4, 10)]], row[[0, 1, *range(4, 10)]])
        return flags, compiled_row.tolist()


pytestmark = pytest.mark.usefixtures("compiled")


@pytest.mark.parametrize("name", NUMBERS)
def test_a_fresh_buffer_is_uninitialized(name: str) -> None:
    for count in (1, 2, 7, 600):
        buffer = Buffer(name, count)
        assert is_pattern(buffer.array).all()
        flags, _ = buffer.inspect(name)
        assert flags & Flag.UNWRITTEN
        assert not flags & (Flag.GUARD_BEFORE | Flag.GUARD_AFTER)


@pytest.mark.parametrize(
    "name", ["f16", "bf16", "f32", "f64", "f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz", "c64"]
)
def test_the_pattern_is_nan(name: str) -> None:
    buffer = Buffer(name, 9)
    flags, row = buffer.inspect(name)
    assert flags == Flag.UNWRITTEN | Flag.NAN
    assert row[4] == row[9] == 9
    assert math.isnan(row[0])


@pytest.mark.parametrize("name", NUMBERS)
def test_one_uninitialized_element_of_a_written_buffer_is_found(name: str) -> None:
    for count in (1, 5, 2048, 4103):
        buffer = Buffer(name, count)
        fresh = buffer.payload.copy()  # bytes, because NumPy writes every bool as 0 or 1
        size = buffer.array.dtype.itemsize
        buffer.array[...] = np.ones(count).astype(buffer.array.dtype)
        untouched = is_pattern(buffer.array)
        if name != "f8e8m0fnu":  # its 1.0 is the byte 0x7F, the pattern at odd addresses
            assert not untouched.any()
            flags, row = buffer.inspect(name)
            assert (flags, row[:4], row[9]) == (0, [1.0, 1.0, 1.0, 0.0], count)
        for position in {0, count // 2, count - 1}:
            element = slice(position * size, (position + 1) * size)
            written = buffer.payload[element].copy()
            buffer.payload[element] = fresh[element]
            assert buffer.inspect(name)[0] & Flag.UNWRITTEN
            buffer.payload[element] = written


@pytest.mark.parametrize("name", ["f32", "f16", "i64", "u8", "bool", "c64"])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_damage_at_every_byte_of_the_guards_is_found(name: str, count: int) -> None:
    for guard in (1, 5, 16, 33):
        buffer = Buffer(name, count, guard * 8)
        buffer.array[...] = np.zeros(count).astype(buffer.array.dtype)
        for side, flag in ((buffer.before, Flag.GUARD_BEFORE), (buffer.after, Flag.GUARD_AFTER)):
            for offset in range(side.size):
                side[offset] ^= 0x10
                assert buffer.inspect(name)[0] == flag
                side[offset] ^= 0x10
        assert buffer.inspect(name)[0] == 0


def test_swapped_guard_bytes_are_damage() -> None:
    buffer = Buffer("f32", 3)
    buffer.array[...] = 0
    buffer.after[4], buffer.after[5] = buffer.after[5], buffer.after[4]
    assert buffer.inspect("f32")[0] == Flag.GUARD_AFTER


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_and_plain_agree_on_any_bits(name: str) -> None:
    rng = np.random.default_rng(5)
    for count in (0, 1, 3, 17, 2047, 2048, 2049, 5000):
        buffer = Buffer(name, count)
        if name == "bool":
            buffer.payload[...] = rng.integers(0, 2, count)
        else:
            buffer.payload[...] = rng.integers(0, 256, buffer.payload.size)
        buffer.inspect(name)


@given(
    st.lists(
        st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1.5, -2.0, 1e-7]) | st.floats(width=32),
        max_size=40,
    ),
    st.sampled_from(["f32", "f64", "f16", "bf16"]),
)
def test_flags_report_nan_and_inf(numbers: list[float], name: str) -> None:
    buffer = Buffer(name, len(numbers))
    with np.errstate(over="ignore"):
        buffer.array[...] = np.array(numbers, np.float64).astype(buffer.array.dtype)
    flags, row = buffer.inspect(name)
    wide = buffer.array.astype(np.float64)
    assert bool(flags & Flag.NAN) == np.isnan(wide).any()
    assert bool(flags & Flag.INF) == np.isinf(wide).any()
    summary = summarize(buffer.array)
    assert summary_of(row, name) == summary
    np.testing.assert_array_equal(row_of(summary), row)


def test_bool_bytes_other_than_0_and_1_are_uninitialized() -> None:
    buffer = Buffer("bool", 4)
    buffer.payload[...] = [0, 1, 2, 1]
    assert buffer.inspect("bool")[0] == Flag.UNWRITTEN
    assert is_pattern(buffer.array).tolist() == [False, False, True, False]


def test_the_pattern_is_found_at_odd_addresses() -> None:
    raw = np.zeros(12, np.uint8)
    fill(raw[1:])
    assert raw[2:].view("<u2").tolist() == [PATTERN_WORD] * 5
    assert raw[:2].tolist() == [0, 0x7F]
    unaligned = raw[1:9].view(np.float32)
    assert is_pattern(unaligned).all()
    assert is_pattern(raw[1:].reshape(11, 1)[::-2]).all()
    assert not is_pattern(np.array(["a"], object)).any()


def test_fill_rejects_arrays_that_it_cannot_fill() -> None:
    read_only = np.zeros(3)
    read_only.flags.writeable = False
    for array in (np.zeros(6)[::2], np.array([None]), read_only):
        with pytest.raises(UsageError, match="cannot be filled"):
            fill(array)
    fill(np.zeros((0, 3)))
    fortran = np.zeros((3, 5), order="F")
    fill(fortran)
    assert is_pattern(fortran).all()


def test_strings_and_unknown_dtypes_have_no_inspector() -> None:
    assert inspector("str") is None
    assert inspector("f128") is None


def test_rows_of_integers_become_integers() -> None:
    buffer = Buffer("i32", 2)
    buffer.array[...] = [-7, 2**30]
    _, row = buffer.inspect("i32")
    assert summary_of(row, "i32") == summarize(buffer.array)
    assert type(summary_of(row, "i32").min) is int
