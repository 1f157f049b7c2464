"""N14: codecs for the history: sizes, error bounds, and NaN and Inf that never change."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import nncdbg
from nncdbg.dtypes import NUMPY
from nncdbg.journal.codecs import EXACT, block_count, decode, encode
from tests.laws import examples

SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9)
LOSSY = st.sampled_from(["f16", "bf16", "f32", "f64"])


@st.composite
def tensors(draw: Any, *, finite: bool, largest: float = 65504.0) -> np.ndarray[Any, Any]:
    dtype = draw(LOSSY)
    elements = st.floats(-largest, largest, width=32)
    if not finite:
        elements = st.one_of(elements, st.sampled_from([math.nan, math.inf, -math.inf, 1e30, -7e4, 1e-30]))
    array = draw(arrays.arrays(np.float64, draw(SHAPES), elements=elements))
    with np.errstate(over="ignore"):
        converted: np.ndarray[Any, Any] = array.astype(NUMPY[dtype])
        return converted


def f64(array: Any) -> np.ndarray[Any, Any]:
    return np.asarray(array, np.float64)


@given(tensors(finite=True, largest=60000.0))
def test_the_error_of_blocks_is_a_sixth_of_the_range_and_the_rounding_of_its_ends(array: Any) -> None:
    """N14: |x - decoded| <= (high - low) / 6 + rounding of the extremes to f16, for each element."""
    encoded = encode(array, "blocks")
    found = decode(encoded)
    assert (found.shape, found.dtype) == (array.shape, array.dtype)
    assert len(encoded.data) == 8 * block_count(array.shape)
    if not array.size:
        return
    span = float(f64(array).max() - f64(array).min())
    most = float(np.abs(f64(array)).max())
    # f16 has 11 bits, and steps of 2^-24 near 0; a result of bf16 has 8 bits.
    rounding = most * 2**-11 + 2**-25 + (most * 2**-8 if encoded.dtype == "bf16" else most * 2**-11)
    assert encoded.error.absolute <= (span + 2 * rounding) / 6 + rounding + 1e-6 * most


@given(tensors(finite=False))
def test_blocks_never_change_which_elements_are_nan_or_inf(array: Any) -> None:
    found = decode(encode(array, "blocks"))
    for test in (np.isnan, np.isposinf, np.isneginf):
        assert np.array_equal(test(f64(found)), test(f64(array)))
    width = f"u{array.dtype.itemsize}"
    abnormal = ~np.isfinite(f64(array))
    assert np.array_equal(found.view(width)[abnormal], array.view(width)[abnormal]), "the bits are the same"


@given(tensors(finite=False), st.sampled_from(["blocks", "exact"]))
def test_the_reported_error_is_that_of_the_decoded_tensor(array: Any, codec: str) -> None:
    encoded = encode(array, codec)
    normal = np.isfinite(f64(array))
    difference = np.abs(f64(decode(encoded))[normal] - f64(array)[normal])
    assert encoded.error.absolute == difference.max(initial=0.0)
    rms = math.sqrt(np.square(difference).mean()) if difference.size else 0.0
    assert encoded.error.rms == pytest.approx(rms)


@given(tensors(finite=True, largest=60000.0))
def test_the_cast_to_f16_has_two_bytes_per_element_and_its_own_rounding(array: Any) -> None:
    encoded = encode(array, "f16")
    assert len(encoded.data) == 2 * array.size
    assert np.array_equal(decode(encoded), array.astype(np.float16).astype(array.dtype))
    difference = np.abs(f64(decode(encoded)) - f64(array))
    assert encoded.error.absolute == difference.max(initial=0.0)
    assert (difference <= np.abs(f64(array)) * 2**-11 + 2**-25).all() or array.dtype == NUMPY["bf16"]


@examples(50)
@given(st.sampled_from([name for name in NUMPY if name != "str"]), SHAPES, st.data())
def test_lossless_keeps_every_bit_of_every_type(name: str, shape: tuple[int, ...], data: Any) -> None:
    dtype = NUMPY[name]
    raw = data.draw(arrays.arrays(np.uint8, (math.prod(shape) * dtype.itemsize,)))
    array = raw.view(dtype).reshape(shape)
    encoded = encode(array)
    assert encoded.error == EXACT
    assert encoded.data == array.tobytes()
    assert decode(encoded).tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("dtype", "shape", "blocks"),
    [
        ("f32", (), 1),
        ("f32", (0,), 0),
        ("f32", (16,), 1),
        ("f16", (17,), 2),
        ("f32", (4, 4), 1),
        ("f32", (5, 4), 2),
        ("bf16", (64, 64), 256),
        ("f64", (3, 8, 8), 12),
        ("f32", (2, 3, 9, 6), 36),
        ("f32", (64, 64, 1, 1), 256),
        ("f32", (64, 64, 3, 3), 2304),
        ("f32", (1000, 1), 63),
        ("f32", (2, 0, 4), 0),
    ],
)
def test_sizes_are_exact(dtype: str, shape: tuple[int, ...], blocks: int) -> None:
    """N14: a block of 16 elements has 8 bytes, a quarter of f16."""
    generator = np.random.default_rng(0)
    array = generator.normal(size=shape).astype(NUMPY[dtype])
    encoded = encode(array, "blocks")
    assert block_count(shape) == blocks
    assert len(encoded.data) == 8 * blocks
    if blocks and array.size == 16 * blocks:
        assert 4 * len(encoded.data) == len(encode(array, "f16").data)
    assert decode(encoded).shape == shape


def test_a_block_with_a_nan_is_stored_unchanged() -> None:
    array = np.random.default_rng(1).normal(size=(8, 8)).astype(np.float32)
    array[5, 1] = np.nan
    encoded = encode(array, "blocks")
    assert len(encoded.data) == 4 * 8 + 16 * 4
    found = decode(encoded)
    assert np.array_equal(found[4:, :4], array[4:, :4], equal_nan=True)
    assert not np.array_equal(found[:4], array[:4])


def test_the_elements_of_a_block_are_neighbours_in_both_axes() -> None:
    tiles = np.kron(np.arange(12.0).reshape(3, 4), np.ones((4, 4))).astype(np.float32)
    encoded = encode(tiles, "blocks")
    assert encoded.error == EXACT
    assert np.array_equal(decode(encoded), tiles)


def test_four_equidistant_levels_are_exact() -> None:
    array = np.tile(np.array([-3.0, -1.0, 1.0, 3.0], np.float32), 4)
    assert np.array_equal(decode(encode(array, "blocks")), array)


def test_the_relative_error_of_uniform_numbers_is_about_a_sixth() -> None:
    array = np.random.default_rng(2).uniform(-1, 1, size=(256, 256)).astype(np.float32)
    error = encode(array, "blocks").error
    assert 0.15 < error.relative < 0.168
    assert error.rms == pytest.approx(0.17, abs=0.02)


@pytest.mark.parametrize("layout", ["transposed", "reversed", "big-endian", "read-only"])
def test_layouts_in_memory(layout: str) -> None:
    array = np.random.default_rng(3).normal(size=(8, 12)).astype(np.float32)
    given = {
        "transposed": np.ascontiguousarray(array.T).T,
        "reversed": array[::-1, ::-1][::-1, ::-1],
        "big-endian": array.astype(">f4"),
        "read-only": np.frombuffer(array.tobytes(), np.float32).reshape(8, 12),
    }[layout]
    for codec in ("exact", "f16", "blocks"):
        assert encode(given, codec) == encode(array, codec)


def test_tensors_that_a_codec_cannot_store_are_refused() -> None:
    with pytest.raises(nncdbg.UsageError, match="2 elements are beyond 65504"):
        encode(np.array([1e5, 2.0, -7e4], np.float32), "f16")
    for array in (np.arange(4), np.array([True]), np.zeros(3, np.complex64)):
        with pytest.raises(nncdbg.UsageError, match="the codec blocks cannot store a tensor of"):
            encode(array, "blocks")
    with pytest.raises(nncdbg.UsageError, match="cannot store a tensor of str"):
        encode(np.array(["a"], object))
    with pytest.raises(nncdbg.UsageError, match="there is no codec 'zip'"):
        encode(np.zeros(3), "zip")


@pytest.mark.parametrize("codec", ["exact", "f16", "blocks"])
@pytest.mark.parametrize("cut", [0, 1, 7, 33, 60])
def test_bytes_that_do_not_fit_are_refused(codec: str, cut: int) -> None:
    array = np.random.default_rng(4).normal(size=(8, 8)).astype(np.float32)
    array[0, 0] = np.inf
    encoded = encode(array, codec)
    with pytest.raises(nncdbg.UsageError, match="cannot decode"):
        decode(replace(encoded, data=encoded.data[:cut]))
    with pytest.raises(nncdbg.UsageError, match="cannot decode"):
        decode(replace(encoded, data=encoded.data + bytes(16 * 4)))
