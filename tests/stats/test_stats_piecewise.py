"""Statistics by pieces equal those of the whole tensor, and can be cancelled."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from nncdbg.ir.records import Array
from nncdbg.stats import blocks, histogram, histograms, summarize
from nncdbg.stats.blocks import next_nonfinite


class CancelledError(Exception):
    """Raised between two pieces."""


def _values_with_nonfinite(size: int) -> Array:
    values = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    values[3], values[50], values[51], values[7] = np.nan, np.inf, -np.inf, 0
    return values


ARRAYS = {
    "flat": _values_with_nonfinite(1000),
    "transposed": _values_with_nonfinite(1000).reshape(10, 100).T,
    "every other": _values_with_nonfinite(2000)[::2],
    "repeated": np.broadcast_to(_values_with_nonfinite(100), (10, 100)),
    "bf16": _values_with_nonfinite(1000).astype(ml_dtypes.bfloat16).reshape(2, 5, 100),
    "i4": np.arange(1000).astype(np.int8).astype(ml_dtypes.int4),
    "bool": np.arange(1000) % 3 == 0,
    "only nan": np.full(200, np.nan),
    "empty": np.zeros((0, 3)),
    "scalar": np.asarray(2.5),
    "complex": _values_with_nonfinite(1000).astype(np.complex64),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_statistics_by_pieces_equal_those_of_the_whole(array: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histograms, "_PIECE", 64)
    calls: list[int] = []
    found = histograms.summarize_by_pieces(array, lambda: calls.append(1))
    whole = summarize(array)
    assert len(calls) >= -(-array.size // 64)
    for name, number in whole.as_dict().items():
        assert found.as_dict()[name] == (number if number is None else pytest.approx(number, rel=1e-6))
    for limits in (None, (-1.0, 1.0)):
        spread = histograms.histogram_by_pieces(array, 7, limits, lambda: None)
        ends = (whole.min, whole.max) if whole.min is not None and whole.max is not None else (0.0, 1.0)
        expected = histogram(array, 7, limits or ends)
        assert spread.as_dict() == expected.as_dict()


def test_statistics_can_be_cancelled_between_two_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histograms, "_PIECE", 64)
    left = iter([None, None])

    def between() -> None:
        if next(left, 1) is not None:
            raise CancelledError

    with pytest.raises(CancelledError):
        histograms.summarize_by_pieces(np.zeros(1000), between)


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_next_nonfinite_visits_each_nonfinite_element_in_order(
    array: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_PIECE", 64)
    with np.errstate(all="ignore"):
        expected = np.flatnonzero(~np.isfinite(array.reshape(-1).astype(np.complex128)))
    found, start = [], 0
    for _ in expected:
        position = next_nonfinite(array, start, lambda: None)
        assert position is not None
        found.append(position)
        start = position + 1
    assert found == expected.tolist()
    assert next_nonfinite(array, start, lambda: None) == (found[0] if found else None)
