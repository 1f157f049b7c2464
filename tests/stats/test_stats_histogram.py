from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nncdbg import dtypes
from nncdbg.errors import UsageError
from nncdbg.stats import histogram


@given(
    hnp.arrays(np.float32, st.integers(0, 60), elements=st.floats(-1000, 1000, width=32)),
    st.integers(1, 40),
    st.lists(st.sampled_from([np.nan, np.inf, -np.inf]), max_size=5),
)
def test_counts_equal_those_of_numpy(finite: np.ndarray[Any, Any], bins: int, others: list[float]) -> None:
    found = histogram(np.concatenate([finite, np.array(others, np.float32)]), bins)
    assert (found.nan, found.posinf, found.neginf) == tuple(
        sum(test(x) for x in others) for test in (np.isnan, np.isposinf, np.isneginf)
    )
    assert found.counts.sum() == finite.size
    try:
        counts, edges = np.histogram(finite, bins)
    except ValueError:  # the numbers are too close for so many bins
        return
    np.testing.assert_array_equal(found.counts, counts)
    np.testing.assert_array_equal(found.edges, edges.astype(np.float64))


@pytest.mark.parametrize("name", [name for name in dtypes.NUMPY if name not in ("str", "bool")])
def test_every_dtype_has_a_histogram(name: str) -> None:
    array = np.array([1, 1, 2, 1, 2, 2, 1]).astype(dtypes.NUMPY[name]) if name != "i2" else None
    if array is None:
        array = np.array([0, 0, 1, 0, 1, 1, 0]).astype(dtypes.NUMPY[name])
    found = histogram(array.reshape(7, 1)[::-1], bins=2)
    assert found.counts.tolist() == [4, 3]
    json.dumps(found.as_dict(), allow_nan=False)


def test_bools_empty_tensors_and_equal_elements_have_a_histogram() -> None:
    assert histogram(np.array([True, False, True]), 2).counts.tolist() == [1, 2]
    assert histogram(np.zeros(0), 3).counts.tolist() == [0, 0, 0]
    assert histogram(np.full(4, np.nan)).nan == 4
    equal = histogram(np.full(5, 7.0), 4)
    assert (equal.edges[0], equal.edges[-1], equal.counts.sum()) == (6.5, 7.5, 5)


@pytest.mark.parametrize(
    "numbers",
    [
        np.array([1, np.nextafter(np.float32(1), np.float32(2))], np.float32),
        np.array([1, np.nextafter(1, 2)]),
        np.array([-1.7e308, 0, 1.7e308]),
        np.array([-65504, 65504], np.float16),
        np.array([-(2**63), 2**63 - 1]),
        np.array([5e-324, 0]),
    ],
)
def test_extreme_ranges_lose_no_element(numbers: np.ndarray[Any, Any]) -> None:
    found = histogram(numbers, 10)
    assert found.counts.sum() == numbers.size
    assert np.all(np.isfinite(found.edges))
    assert np.all(np.diff(found.edges) >= 0)


def test_edges_and_range_can_be_given() -> None:
    assert histogram(np.arange(10), [0, 5, 9]).counts.tolist() == [5, 5]
    assert histogram(np.arange(10), 2, (2, 6)).counts.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("bins", "limits"),
    [(0, None), (-1, None), ([1.0], None), ([2.0, 1.0], None), (3, (1, 0)), (3, (0, np.inf))],
)
def test_invalid_bins_and_ranges_are_errors(bins: Any, limits: Any) -> None:
    with pytest.raises(UsageError):
        histogram(np.arange(3), bins, limits)


@pytest.mark.parametrize("number", [-1e300, 1.797e308, -1.797e308, 0.0, 1e16])
def test_a_range_of_width_zero_is_widened_for_all_bins(number: float) -> None:
    found = histogram(np.array([number]), 1020, (number, number))
    assert found.counts.sum() == 1
    assert np.all(np.diff(found.edges) > 0)


def test_strings_have_no_histogram() -> None:
    with pytest.raises(UsageError, match="strings"):
        histogram(np.array(["a"]))
