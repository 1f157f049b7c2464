from __future__ import annotations

import dataclasses
import json
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nncdbg import dtypes, stats
from nncdbg.errors import UsageError
from nncdbg.stats.summary import Summary, combine, summarize_plain
from tests.laws import examples
from tests.stats.statistics_reference import assert_agrees, expected

NUMBERS = [name for name in dtypes.NUMPY if name != "str"]
SHAPES = [(), (0,), (3, 0, 2), (1,), (7,), (2047,), (2048,), (2049,), (5, 7), (2, 3, 4, 5), (5300,)]
LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "plain": lambda a: a,
    "fortran": np.asfortranarray,
    "reversed": lambda a: a[::-1] if a.ndim else a,
    "strided": lambda a: np.repeat(a, 2, axis=-1)[..., ::2] if a.ndim else a,
    "transposed": lambda a: a.T,
    "broadcast": lambda a: np.broadcast_to(a, (3, *a.shape)),
}


def sample(name: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    """Return random bits: any NaN, infinity, subnormal or extreme integer of the dtype can occur."""
    dtype = dtypes.NUMPY[name]
    rng = np.random.default_rng(seed)
    if name == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    size = math.prod(shape)
    return rng.integers(0, 256, size * dtype.itemsize, np.uint8).view(dtype).reshape(shape)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NUMBERS)
def test_statistics_of_every_dtype_shape_and_layout_are_exact(
    either_pass: str, name: str, layout: str
) -> None:
    for seed, shape in enumerate(SHAPES):
        array = LAYOUTS[layout](sample(name, shape, seed))
        array.flags.writeable = False
        assert_agrees(stats.summarize(array), array)


SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -2.5]
FLOAT_TENSORS: dict[str, list[float]] = {
    "every special": SPECIAL,
    "all nan": [math.nan] * 2500,
    "all inf": [math.inf] * 2500,
    "all -inf": [-math.inf] * 3,
    "zeros": [0.0] * 2500,
    "negative zeros": [-0.0] * 2500,
    "one nan at the end": [1.0] * 4096 + [math.nan],
    "one inf at the start": [math.inf] + [3.0] * 4096,
    "a mask": [0.0, -math.inf] * 2500,
    "only negative": [-3.0, -1.0, -2.0],
    "a block of nan between": [1.0] * 2048 + [math.nan] * 2048 + [2.0] * 2048,
}


@pytest.mark.parametrize("name", ["f64", "f32", "f16", "bf16", "f8e5m2", "c64"])
@pytest.mark.parametrize("tensor", FLOAT_TENSORS)
def test_statistics_of_special_values_are_exact(either_pass: str, name: str, tensor: str) -> None:
    array = np.array(FLOAT_TENSORS[tensor]).astype(dtypes.NUMPY[name])
    summary = stats.summarize(array)
    assert_agrees(summary, array)
    json.loads(json.dumps(summary.as_dict(), allow_nan=False))


@pytest.mark.parametrize(
    ("name", "number"),
    [("f32", 0.1), ("f32", 3.4e38), ("f32", 1e-45), ("f16", 65504), ("f16", 6e-8), ("bf16", 3.3e38)]
    + [
        ("f64", 0.1),
        ("f64", 1.7e308),
        ("f64", 5e-324),
        ("f64", -1e-200),
        ("i64", 2**63 - 1),
        ("u64", 2**64 - 1),
    ]
    + [("f8e4m3fn", 448.0), ("c128", 1e300), ("i32", -(2**31)), ("u8", 255)],
)
def test_equal_elements_have_no_spread(either_pass: str, name: str, number: float) -> None:
    array = np.full(1700, number).astype(dtypes.NUMPY[name]) if name[0] not in "iu" else None
    if array is None:
        array = np.full(1700, number, dtypes.NUMPY[name])
    summary = stats.summarize(array)
    assert summary.std == 0.0
    assert summary.mean == pytest.approx(
        float(abs(array[0])) if name == "c128" else float(array[0]), rel=1e-15
    )
    assert_agrees(summary, array)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("f64", lambda r: 1e4 + r),
        ("f32", lambda r: 1e4 + r),
        ("f64", lambda r: 1e10 + r),
        ("f16", lambda r: 60000 + 100 * r),
        ("f32", lambda r: 1e38 * r.clip(-3, 3)),
        ("f32", lambda r: 1e-40 * r),
        ("bf16", lambda r: 1e38 * r.clip(-3, 3)),
        ("f64", lambda r: 1e300 * r),
        ("f64", lambda r: 1.7e308 * np.sign(r)),
        ("f64", lambda r: 1e-310 * r),
        ("f64", lambda r: 1e-180 * (1 + 1e-3 * r)),
        ("f64", lambda r: np.where(r > 3, 1e300, r)),
        ("i64", lambda r: 2**62 * np.sign(r)),
        ("i32", lambda r: 2e9 * np.sign(r)),
        ("f32", lambda r: np.concatenate([[1e30], r])),
        ("f32", lambda r: np.sort(r)),
        ("c128", lambda r: 1e300 * r),
    ],
)
def test_mean_and_std_are_accurate_at_extreme_magnitudes(either_pass: str, name: str, make: Any) -> None:
    array = make(np.random.default_rng(3).standard_normal(3000)).astype(dtypes.NUMPY[name])
    assert_agrees(stats.summarize(array), array)
    summary, (mean, std) = stats.summarize(array), (expected(array)["mean"], expected(array)["std"])
    assert summary.std == pytest.approx(std, rel=1e-6, abs=0)
    assert summary.mean == pytest.approx(mean, rel=1e-6, abs=1e-9 * std)


@given(
    hnp.arrays(
        st.sampled_from(
            [np.float32, np.float64, np.float16, np.int64, np.uint64, np.int16, np.bool_, np.complex64]
        ),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=8),
    ),
    st.booleans(),
)
@examples(150)
def test_statistics_of_any_array_are_exact(
    either_pass: str, array: np.ndarray[Any, Any], reversed_axes: bool
) -> None:
    array = array.T[::-1] if reversed_axes and array.ndim else array
    assert_agrees(stats.summarize(array), array)


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i8", ">u2", ">f2"])
def test_byte_order_and_alignment_do_not_matter(either_pass: str, dtype: str) -> None:
    array = np.arange(2000).astype(dtype)
    native = array.astype(array.dtype.newbyteorder("="))
    raw = np.zeros(native.nbytes + 1, np.uint8)
    unaligned = raw[1:].view(native.dtype)
    unaligned[...] = native
    assert stats.summarize(array) == stats.summarize(native) == stats.summarize(unaligned)


def test_a_large_tensor_is_summarized_in_threads(compiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nncdbg.stats.summary._cores", lambda: 3)
    array = np.random.default_rng(0).standard_normal(5_000_001, dtype=np.float32)
    array[[5, 4_999_999]] = np.nan, np.inf
    finite = array[np.isfinite(array)].astype(np.float64)
    summary = stats.summarize(array)
    assert (summary.nan, summary.posinf, summary.count) == (1, 1, array.size)
    assert (summary.min, summary.max) == (finite.min(), finite.max())
    assert summary.std == pytest.approx(finite.std(), rel=1e-9)
    assert summary.mean == pytest.approx(finite.mean(), rel=1e-9, abs=1e-12)


def test_a_broadcast_tensor_reads_each_element_once(either_pass: str) -> None:
    array = np.broadcast_to(np.array([[1.0], [np.nan]], np.float32), (10**6, 2, 10**6))
    summary = stats.summarize(array)
    assert (summary.nan, summary.count, summary.std) == (10**12, 2 * 10**12, 0.0)


def test_strings_have_no_statistics_and_other_dtypes_are_errors() -> None:
    none = Summary(None, None, None, None, 0, 0, 0, 0, 0, 2)
    assert stats.summarize(np.array(["a", "b"])) == stats.summarize(np.array(["a", "b"], object)) == none
    with pytest.raises(UsageError, match="no statistics"):
        stats.summarize(np.zeros(2, "M8[s]"))


def test_scalars_are_summarized(either_pass: str) -> None:
    assert stats.summarize(np.float32(2.5)).min == 2.5
    assert stats.summarize(np.bool_(True)).max == 1
    assert stats.summarize(3).max == 3


def test_a_summary_prints_and_is_immutable() -> None:
    summary = stats.summarize(np.array([-0.125, 6.0625, np.nan, np.inf, 0]))
    assert str(summary) == "nan 1 +inf 1 min -0.125 mean 1.979 max 6.062 std 2.888"
    assert str(stats.summarize(np.array([-np.inf]))) == "-inf 1 of 1"
    assert str(stats.summarize(np.array([123456, 2]))) == "min 2 mean 6.173e+04 max 123456 std 6.173e+04"
    assert list(summary.as_dict()) == [field.name for field in dataclasses.fields(Summary)]
    assert type(summary) is Summary
    with pytest.raises(dataclasses.FrozenInstanceError):
        summary.min = 0.0  # type: ignore[misc]
    assert hash(summary) == hash(dataclasses.replace(summary))


def test_combined_parts_equal_the_whole() -> None:
    array = sample("f32", (4000,))
    parts = [summarize_plain(part) for part in np.array_split(array, 7)]
    assert_agrees(combine(parts), array)
    assert combine([]).count == 0


def test_threads_do_not_share_their_rows(compiled: None) -> None:
    arrays = [np.full(300, i, np.int64) for i in range(4)]
    wrong: list[int] = []

    def work(i: int) -> None:
        wrong.extend(i for _ in range(2000) if stats.summarize(arrays[i]).max != i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
