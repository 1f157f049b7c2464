"""Random ops: exact replay from the generator, and the distribution that ONNX specifies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nncdbg.dtypes import NUMPY, ONNX
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import complete
from nncdbg.errors import GraphError
from tests.engine.ops.onnx_cases import assert_agrees, execute, type_of

COUNT = 20_000


def run(name: str, version: int, inputs: tuple[Any, ...] = (), outputs: int = 1, **attributes: Any) -> Any:
    """Return one output or a tuple, after checking it against type inference and a second run."""
    op = lookup(name, version)
    assert op is not None
    assert op.infer is not None
    first = execute(op, version, attributes, inputs, outputs)
    again = execute(op, version, attributes, inputs, outputs)
    types = op.infer(complete(name, version, attributes), [type_of(array) for array in inputs])
    for one, two, inferred in zip(first, again, types, strict=False):
        assert isinstance(one, np.ndarray)
        assert one.tobytes() == two.tobytes()
        assert_agrees(inferred, one)
    return first[0] if outputs == 1 else first


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("like", [False, True])
def test_normal_has_mean_and_scale(dtype: str, like: bool) -> None:
    settings: dict[str, Any] = {"mean": 3.0, "scale": 0.5, "dtype": ONNX[dtype]}
    if like:
        x = run("RandomNormalLike", 22, (np.zeros(COUNT, np.int8),), **settings)
    else:
        x = run("RandomNormal", 22, shape=(COUNT,), **settings)
    assert x.dtype == NUMPY[dtype]
    wide = x.astype(np.float64)
    assert wide.mean() == pytest.approx(3.0, abs=0.02)
    assert wide.std() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("like", [False, True])
def test_uniform_covers_its_range(dtype: str, like: bool) -> None:
    settings: dict[str, Any] = {"low": -2.0, "high": 6.0}
    if like:
        x = run("RandomUniformLike", 1, (np.zeros(COUNT, NUMPY[dtype]),), **settings)
    else:
        x = run("RandomUniform", 1, shape=(COUNT,), dtype=ONNX[dtype], **settings)
    assert x.dtype == NUMPY[dtype]
    assert -2 <= x.min() < -1.99
    assert 5.99 < x.max() <= 6
    assert x.mean() == pytest.approx(2.0, abs=0.08)


def test_a_negative_size_is_a_graph_error() -> None:
    with pytest.raises(GraphError, match="negative"):
        run("RandomNormal", 22, shape=(2, -1))


def test_bernoulli_draws_with_the_probability_and_keeps_nan() -> None:
    x = np.repeat(np.array([0.0, 0.25, 1.0, np.nan], np.float32), COUNT)
    y = run("Bernoulli", 22, (x,)).reshape(4, COUNT)
    assert not y[0].any()
    assert y[1].mean() == pytest.approx(0.25, abs=0.02)
    assert y[2].all()
    assert np.isnan(y[3]).all()
    assert run("Bernoulli", 22, (x[: 3 * COUNT],), dtype=ONNX["bool"]).dtype == np.bool_


def test_multinomial_draws_classes_by_their_log_probability() -> None:
    logits = np.log(np.array([[0.1, 0.2, 0.7], [1.0, 1e-30, 1.0]], np.float32))
    y = run("Multinomial", 22, (logits,), sample_size=COUNT)
    assert y.dtype == np.int32
    shares = np.stack([(y == k).mean(axis=1) for k in range(3)], axis=1)
    np.testing.assert_allclose(shares, [[0.1, 0.2, 0.7], [0.5, 0.0, 0.5]], atol=0.02)


@pytest.mark.parametrize("version", [1, 6, 12, 13, 22])
def test_dropout_in_training_drops_and_scales(version: int) -> None:
    x = np.ones(COUNT, np.float32)
    if version < 12:
        y, mask = run("Dropout", version, (x,), 2, ratio=0.25, is_test=0)
        assert mask.dtype == np.float32
    else:
        y, mask = run("Dropout", version, (x, np.array(0.25, np.float32), np.array(True)), 2)
        assert mask.dtype == np.bool_
    np.testing.assert_array_equal(y, mask * np.float32(1 / 0.75))
    assert mask.mean() == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize(
    ("version", "attributes", "mask_dtype"),
    [(6, {"is_test": 1}, np.float32), (7, {}, np.float32), (10, {}, np.bool_), (13, {}, np.bool_)],
)
def test_dropout_outside_training_is_the_identity(
    version: int, attributes: dict[str, Any], mask_dtype: type
) -> None:
    x = np.array([1.0, np.nan, -np.inf], np.float32)
    y, mask = run("Dropout", version, (x,), 2, **attributes)
    assert y is x
    assert mask.dtype == mask_dtype
    assert mask.all()


def test_results_of_scalars_are_arrays() -> None:
    x = np.array(0.5, np.float32)
    assert run("Dropout", 13, (x, np.array(0.5, np.float32), np.array(True))).shape == ()
    assert run("Bernoulli", 22, (x,)).shape == ()
    assert run("RandomNormalLike", 22, (x,)).shape == ()
    assert run("RandomUniform", 22, shape=()).shape == ()


def test_dropout_propagates_nan() -> None:
    x = np.full(COUNT, np.nan, np.float32)
    assert np.isnan(run("Dropout", 13, (x, np.array(0.5, np.float32), np.array(True)))).all()
