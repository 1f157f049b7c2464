from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from nncdbg import dtypes
from nncdbg.errors import UsageError
from nncdbg.stats import compare
from tests.laws import examples

FLOATS = sorted(dtypes.FLOATS)


def test_figures_equal_their_formulas() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((300, 400)).astype(np.float32)
    b = a + np.float32(1e-3) * rng.standard_normal((300, 400)).astype(np.float32)
    b[7, 11] += 5
    found = compare(a, b.T.copy().T)
    x, y = a.astype(np.float64), b.astype(np.float64)
    distance = np.abs(x - y)
    assert found.max_abs == distance.max()
    assert found.mean_abs == pytest.approx(distance.mean(), rel=1e-12)
    assert found.max_rel == pytest.approx((distance / np.maximum(np.abs(x), np.abs(y))).max(), rel=1e-12)
    cosine = (x * y).sum() / math.sqrt((x * x).sum() * (y * y).sum())
    assert found.cosine == pytest.approx(cosine, rel=1e-12)
    assert found.worst == (7, 11)
    assert (found.mismatched, found.count) == (int((a != b).sum()), a.size)


@pytest.mark.parametrize("name", FLOATS)
def test_ulps_are_steps_between_neighbours(name: str) -> None:
    """The reference is the list of all finite numbers of a narrow dtype, or `nextafter` of a wide one."""
    dtype = dtypes.NUMPY[name]
    if dtype.itemsize > 2:
        a = np.array([1, -1, 0, 1e-45 if name == "f32" else 5e-324], dtype)
        b = np.nextafter(np.nextafter(a, dtype.type(4)), dtype.type(4))
        assert compare(a, b).max_ulp == 2
        assert compare(a[2:3], -a[2:3]).max_ulp == 0
        return
    bits = 8 * dtype.itemsize if name != "f4e2m1fn" else 4
    everything = np.arange(1 << bits, dtype=f"u{dtype.itemsize}").view(dtype)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        numbers = everything.astype(np.float64)
    ordered = np.unique(numbers[np.isfinite(numbers)])
    rng = np.random.default_rng(1)
    x, y = rng.choice(everything[np.isfinite(numbers)], (2, 40))
    for p, q in zip(x, y, strict=True):
        steps = abs(int(np.searchsorted(ordered, float(p))) - int(np.searchsorted(ordered, float(q))))
        assert compare(np.array([p]), np.array([q])).max_ulp == steps


def test_nan_and_inf_differ_only_on_one_side() -> None:
    a = np.array([1, np.nan, np.nan, np.inf, np.inf, np.inf, 0.0])
    b = np.array([1, np.nan, 2.0, np.inf, -np.inf, 3.0, -0.0])
    found = compare(a, b)
    assert (found.mismatched, found.nan_mismatch, found.inf_mismatch, found.worst) == (3, 1, 2, (2,))
    assert (found.max_abs, found.max_rel, found.max_ulp) == (0.0, 0.0, 0)


def test_tensors_without_finite_pairs_have_no_differences() -> None:
    for array in (np.zeros((0, 3)), np.full(4, np.nan)):
        found = compare(array, array)
        assert (found.max_abs, found.mean_abs, found.cosine, found.max_ulp, found.worst) == (None,) * 5
        assert (found.mismatched, found.count) == (0, array.size)
    assert compare(np.zeros(3), np.ones(3)).cosine is None


@given(hnp.arrays(np.float64, hnp.array_shapes(max_dims=3)))
@examples(50)
def test_a_tensor_equals_itself(array: np.ndarray[Any, Any]) -> None:
    found = compare(array, array.copy())
    assert (found.mismatched, found.worst) == (0, None)
    assert found.max_abs in (0.0, None)
    assert found.cosine is None or found.cosine == pytest.approx(1.0)
    json.dumps(found.as_dict(), allow_nan=False)


def test_integers_beyond_f64_are_compared_exactly() -> None:
    found = compare(np.array([2**63 - 1, -(2**63)]), np.array([2**63 - 2, 2**63 - 1]))
    assert (found.mismatched, found.worst, found.max_ulp) == (2, (1,), None)
    assert found.max_abs == float(2**64 - 1)


def test_mixed_bool_complex_and_string_dtypes_are_compared() -> None:
    assert compare(np.float32(1.5), np.float64(1.0)).max_abs == 0.5
    assert compare(np.array([True, False]), np.array([True, True])).worst == (1,)
    assert compare(np.array([3 + 4j]), np.array([0j])).max_abs == 5
    assert compare(np.array([1e300]), np.array([-1e300])).cosine == pytest.approx(-1)
    strings = compare(np.array(["a", "b"], object), np.array(["a", "c"]))
    assert (strings.mismatched, strings.worst, strings.max_abs) == (1, (1,), None)


def test_other_shapes_and_dtypes_are_errors() -> None:
    with pytest.raises(UsageError, match="shape"):
        compare(np.zeros(3), np.zeros((3, 1)))
    with pytest.raises(UsageError, match="strings"):
        compare(np.zeros(1), np.array(["a"]))


def test_no_reduction_uses_threaded_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    def blas(*_: object) -> None:
        raise AssertionError("BLAS threads wait for each other on a busy machine")

    for name in ("vdot", "dot", "inner", "matmul", "tensordot"):
        monkeypatch.setattr(np, name, blas)
    a = np.linspace(-1, 1, 1 << 17)
    assert compare(a, 2 * a).cosine == pytest.approx(1)
    assert compare(a + 1j, a + 2j).cosine == pytest.approx(7 / np.sqrt(52), rel=1e-3)
