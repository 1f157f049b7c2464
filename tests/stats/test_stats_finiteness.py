"""The check that a tensor is finite agrees with NumPy, compiled or not."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nncdbg import dtypes
from nncdbg.stats import prepare
from nncdbg.stats.inspection import is_finite
from nncdbg.stats.preparation import kernel_of
from tests.laws import examples

FLOATS = sorted(dtypes.FLOATS | dtypes.COMPLEX)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("size", [0, 1, 7, 5000])
@pytest.mark.parametrize("name", FLOATS)
def test_a_single_nonfinite_element_is_found(name: str, size: int, compiled: bool) -> None:
    if compiled:
        prepare(wait=True)
    dtype = dtypes.NUMPY[name]
    array = np.ones(size, dtype)
    assert is_finite(array)
    for position in {0, size // 2, size - 1} if size else ():
        for number in (np.nan, np.inf, -np.inf):
            with np.errstate(all="ignore"):
                changed = array.copy()
                changed[position] = number
            assert is_finite(changed) == bool(np.isfinite(changed).all()), (number, position)


@pytest.mark.parametrize("size", [3, 5000])
def test_the_largest_numbers_are_finite(size: int) -> None:
    for dtype in (np.float16, np.float32, np.float64):
        assert is_finite(np.full(size, np.finfo(dtype).max, dtype))
        assert is_finite(np.full(size, np.finfo(dtype).smallest_subnormal, dtype))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", ["f16", "bf16", "f32", "f64"])
def test_squares_that_overflow_are_found(name: str) -> None:
    dtype = dtypes.NUMPY[name]
    kernel = kernel_of(name)
    assert kernel is not None
    assert kernel.squares_finite is not None
    root = float(2 ** ((ml_dtypes.finfo(dtype).maxexp) // 2))
    for number, finite in (
        (0.0, True),
        (root / 2, True),
        (-root / 2, True),
        (root, False),
        (-root, False),
        (np.inf, False),
        (np.nan, False),
    ):
        array = np.ones(5000, dtype)
        array[4999] = number
        with np.errstate(over="ignore"):
            assert bool(np.isfinite(array[4999] * array[4999])) == finite
        for arrays in ([array], [np.ones(3, dtype), array], [array, np.ones(0, dtype)]):
            addresses = np.array([each.ctypes.data for each in arrays], np.int64)
            counts = np.array([each.size for each in arrays], np.int64)
            found = kernel.squares_finite(addresses.ctypes.data, counts.ctypes.data, len(arrays))
            assert bool(found) == finite


@examples(60)
@given(st.integers(0, 3), st.sampled_from([np.nan, np.inf, 1e38, 0.0]), st.integers(0, 5), st.booleans())
def test_a_nonfinite_element_is_found_with_any_strides(
    axis: int, number: float, step: int, reversed_axis: bool
) -> None:
    array = np.ones((4, 6, 5, 7), np.float32)
    array[1, 2, 3, 4] = number
    seen: Any = np.moveaxis(array, axis, 0)[:: step + 1]
    seen = seen[..., ::-1] if reversed_axis else seen
    assert is_finite(seen) == bool(np.isfinite(seen).all())


def test_values_that_are_not_float_tensors_are_finite() -> None:
    for value in (None, [np.array(np.nan)], np.array([1, 2]), np.array(["a"], object), np.array([True])):
        assert is_finite(value)
    assert not is_finite(np.float32("nan"))
