"""The error function against `math.erf`, which is accurate to about one bit in f64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nncdbg.dtypes import NUMPY
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.activation import erf_plain
from tests.engine.ops.onnx_cases import execute, execute_into, type_of
from tests.presence import present

ERF = present(lookup("Erf", 13))


def points(dtype: str) -> np.ndarray:
    spread = np.concatenate(
        [np.linspace(-7, 7, 40_001), np.logspace(-30, 1, 2001), -np.logspace(-30, 1, 2001)]
    )
    return spread.astype(NUMPY[dtype])


def exact(x: np.ndarray) -> np.ndarray:
    return np.array([math.erf(float(value)) for value in x])


def test_f32_compiled_and_plain_are_within_one_ulp_of_the_rounded_result() -> None:
    x = points("f32")
    (compiled,) = execute(ERF, 13, {}, [x])
    plain = erf_plain(np, x, np.empty_like(x))
    for y in (plain, compiled):
        # Adjacent floats of one sign have adjacent bit patterns.
        steps = y.view(np.int32).astype(np.int64) - exact(x).astype(np.float32).view(np.int32)
        assert np.abs(steps).max() <= 1


def test_f64_is_within_1e_15() -> None:
    x = points("f64")
    (y,) = execute(ERF, 13, {}, [x])
    np.testing.assert_allclose(y, exact(x), rtol=1e-15, atol=0)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_narrow_floats_are_rounded_once(dtype: str) -> None:
    x = points(dtype)
    (y,) = execute(ERF, 13, {}, [x])
    assert y.dtype == NUMPY[dtype]
    error = np.abs(y.astype(np.float64) - exact(x))
    step = {"f16": 2.0**-11, "bf16": 2.0**-8}[dtype]
    assert (error <= 1.01 * step * np.abs(exact(x)) + 1e-7).all()


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_special_values(dtype: str) -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40], NUMPY[dtype])
    (y,) = execute(ERF, 13, {}, [x])
    np.testing.assert_array_equal(y[:5], np.array([0.0, -0.0, 1.0, -1.0, np.nan]))
    assert np.signbit(y[1])
    assert y[5] > 0


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_read_only_and_unaligned_inputs(dtype: str) -> None:
    element = NUMPY[dtype]
    x = np.frombuffer(b"\0" + np.ones(5, element).tobytes(), np.uint8)[1:].view(element)
    assert not x.flags.writeable
    assert not x.flags.aligned
    (y,) = execute(ERF, 13, {}, [x])
    np.testing.assert_allclose(y, [math.erf(1)] * 5, rtol=1e-6)


def test_chunks_views_and_integers_agree() -> None:
    x = np.random.default_rng(0).standard_normal((300, 500)).astype(np.float32)
    (whole,) = execute(ERF, 13, {}, [x])
    (turned,) = execute(ERF, 13, {}, [x.T])
    np.testing.assert_array_equal(turned, whole.T)
    inferred = type_of(x)
    assert inferred is not None
    np.testing.assert_array_equal(execute_into(ERF, 13, {}, [x], inferred), whole)
    (integers,) = execute(ERF, 13, {}, [np.array([-1, 0, 9])])
    np.testing.assert_array_equal(integers, [0, 0, 1])
