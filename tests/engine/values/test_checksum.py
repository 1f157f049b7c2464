"""Checksums of arrays: another element, dtype, shape or bit of a zero gives another checksum."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nncdbg.engine.values.checksum import checksum


@pytest.mark.parametrize("size", [1, 5, 2048, 2049, 10_000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.bool_, ml_dtypes.bfloat16])
def test_each_element_counts(size: int, dtype: type) -> None:
    array: Any = np.zeros(size, dtype)
    found = {checksum(array)}
    for position in {0, size // 2, size - 1}:
        changed = array.copy()
        changed[position] = 1
        found.add(checksum(changed))
    assert len(found) == 1 + len({0, size // 2, size - 1})


def test_equal_elements_have_equal_checksums_in_any_layout() -> None:
    array = np.random.default_rng(0).normal(size=(70, 90)).astype(np.float32)
    assert checksum(array) == checksum(np.asfortranarray(array)) == checksum(array[::-1][::-1])


def test_dtype_shape_and_the_sign_of_zero_count() -> None:
    zeros = np.zeros((4, 4), np.float32)
    others = [zeros.view(np.int32), zeros.reshape(16), -zeros, np.zeros((0, 4), np.float32)]
    assert len({checksum(each) for each in (zeros, *others)}) == 5


def test_an_array_without_axes_has_a_checksum() -> None:
    assert checksum(np.float32(1)) == checksum(np.asarray(1, np.float32)) != checksum(np.float32(2))
