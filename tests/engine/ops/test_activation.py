"""Activations: ONNX's cases, ONNX Runtime, formulas, NaN, extremes, narrow floats, old opsets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nncdbg.engine.ops.schema import complete
from nncdbg.errors import GraphError
from nncdbg.ir.records import TensorType
from tests.engine.ops.one_node import (
    OPSET,
    assert_same,
    by_formula,
    by_kernel,
    check_all,
    check_kernel,
    declared,
    normal,
)
from tests.engine.ops.onnx_cases import NodeCase, cases_of, check, uncovered
from tests.laws import examples

POINTWISE: list[tuple[str, dict[str, Any]]] = [
    ("Relu", {}),
    ("LeakyRelu", {"alpha": 0.2}),
    ("Elu", {"alpha": 1.5}),
    ("Selu", {"alpha": 2.0, "gamma": 0.5}),
    ("Celu", {"alpha": 2.0}),
    ("Sigmoid", {}),
    ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
    ("HardSwish", {}),
    ("Softplus", {}),
    ("Softsign", {}),
    ("Mish", {}),
    ("Gelu", {}),
    ("Gelu", {"approximate": "tanh"}),
    ("ThresholdedRelu", {"alpha": 0.5}),
    ("Shrink", {"lambd": 0.7, "bias": 0.3}),
]
FAMILY = ("Softmax", "LogSoftmax", "Hardmax")
OPS = (*dict(POINTWISE), "Swish", "PRelu", *FAMILY)

versioned = pytest.mark.parametrize(("name", "attributes"), [*POINTWISE, ("Swish", {"alpha": 1.5})])


def version_for(name: str) -> int:
    return 24 if name == "Swish" else OPSET


@pytest.mark.parametrize("case", cases_of(OPS), ids=str)
def test_onnx_case(case: NodeCase) -> None:
    check(case)


def test_every_op_has_a_case() -> None:
    assert uncovered(OPS) == []


@pytest.mark.parametrize(("name", "attributes"), POINTWISE)
def test_agrees_with_runtime_and_formula(name: str, attributes: dict[str, Any]) -> None:
    check_all(name, [4 * normal(1, 3, 50)], attributes)


@versioned
def test_nan_propagates(name: str, attributes: dict[str, Any]) -> None:
    x = normal(1, 8)
    x[3] = np.nan
    for read in (by_kernel, by_formula) if name != "Shrink" else (by_kernel,):
        (result,) = read(name, [x], attributes, version=version_for(name))
        assert np.isnan(result).tolist() == [False] * 3 + [True] + [False] * 4


@versioned
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_other_floats_are_rounded_once(name: str, attributes: dict[str, Any], dtype: str) -> None:
    x = 3 * normal(2, 200, dtype="f64")
    x = x.astype(normal(0, 0, dtype=dtype).dtype)
    (result,) = check_kernel(name, [x], attributes, version=version_for(name))
    (exact,) = by_kernel(name, [x.astype(np.float64)], attributes, version=version_for(name))
    assert_same(
        [result], [exact.astype(x.dtype)], rtol={"f16": 2e-3, "bf16": 1e-2, "f64": 0}[dtype], atol=1e-6
    )
    if name != "Shrink":
        micro = by_formula(name, [x], attributes, version=version_for(name))
        assert_same(micro, [result], rtol={"f16": 3e-3, "bf16": 2e-2, "f64": 1e-9}[dtype], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("Sigmoid", 0, 1),
        ("Softplus", 0, np.inf),
        ("Elu", -1, np.inf),
        ("Softsign", -1, 1),
        ("Relu", 0, np.inf),
        ("Mish", 0, 3.0e38),
        ("HardSigmoid", 0, 1),
    ],
)
def test_extremes_do_not_overflow(name: str, low: float, high: float) -> None:
    big = 3.0e38 if name in ("Mish", "Softsign") else np.inf
    with np.errstate(over="raise", invalid="raise"):
        op = declared(name)
        kernel = op.bind(np, complete(name, OPSET, {}))
        result = kernel(np.array([-big, big], np.float32))
    assert result[0] == pytest.approx(low, abs=1e-6)
    assert result[1] == pytest.approx(high)


def test_sigmoid_reaches_the_subnormals() -> None:
    (result,) = by_kernel("Sigmoid", [np.array([-100, -88.0], np.float32)], {})
    np.testing.assert_allclose(result, [3.8e-44, 6.0546e-39], rtol=0.05)


def test_shrink_of_integers() -> None:
    x = np.arange(-3, 4, dtype=np.int32)
    check_all("Shrink", [x], {"lambd": 1.5, "bias": 1.5})


@pytest.mark.parametrize("slope", [(4,), (3, 1), (1,), (2, 3, 4)])
def test_prelu_broadcasts_its_slope(slope: tuple[int, ...]) -> None:
    check_all("PRelu", [normal(1, 2, 3, 4), normal(2, *slope)], {})


def test_prelu_6_has_a_slope_for_each_channel() -> None:
    x, slope = normal(1, 2, 3, 4, 4), normal(2, 3)
    (result,) = check_kernel("PRelu", [x, slope], {}, version=6)
    assert_same([result], by_kernel("PRelu", [x, slope.reshape(3, 1, 1)], {}))


def test_prelu_refuses_a_slope_that_does_not_fit() -> None:
    infer = declared("PRelu").infer
    assert infer is not None
    with pytest.raises(GraphError, match="do not broadcast"):
        infer({}, [TensorType("f32", (2, 3)), TensorType("f32", (4,))])
    with pytest.raises(GraphError, match="slope has 3 axes, but x has 2"):
        infer({}, [TensorType("f32", (2, 3)), TensorType("f32", (1, 2, 3))])


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize(
    ("version", "axis"), [(13, 0), (13, 1), (13, -1), (21, 2), (11, 0), (11, 1), (11, -1), (9, 2)]
)
def test_softmax_family_agrees(name: str, version: int, axis: int) -> None:
    check_all(name, [normal(1, 3, 4, 5)], {"axis": axis}, version=version)


def test_softmax_before_13_flattens_by_default() -> None:
    x = normal(1, 2, 3, 4)
    (old,), (new,) = by_kernel("Softmax", [x], {}, version=11), by_kernel("Softmax", [x], {}, version=13)
    assert old.reshape(2, -1).sum(axis=1) == pytest.approx(1)
    assert new.sum(axis=-1) == pytest.approx(1)


@examples(30)
@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=9))
def test_softmax_is_a_distribution(row: list[float]) -> None:
    x = np.array([row], np.float32)
    (result,) = by_kernel("Softmax", [x], {})
    assert np.isfinite(result).all()
    assert result.sum() == pytest.approx(1, rel=1e-5)
    (logs,) = by_kernel("LogSoftmax", [x], {})
    np.testing.assert_allclose(np.exp(logs), result, atol=1e-6)


@pytest.mark.parametrize("name", FAMILY)
def test_a_row_with_nan_is_nan(name: str) -> None:
    x = normal(1, 3, 4)
    x[1, 2] = np.nan
    (result,) = by_kernel(name, [x], {})
    assert np.isnan(result).all(axis=1).tolist() == [False, True, False]
    assert np.isnan(result).any(axis=1).tolist() == [False, True, False]


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_softmax_family_of_other_floats(name: str, dtype: str) -> None:
    x = normal(1, 5, 40, dtype=dtype)
    (result,) = check_kernel(name, [x], {})
    (exact,) = by_kernel(name, [x.astype(np.float64)], {})
    assert_same([result], [exact.astype(x.dtype)], rtol={"f16": 2e-3, "bf16": 1e-2, "f64": 0}[dtype])


@pytest.mark.parametrize("name", FAMILY)
def test_softmax_of_an_empty_tensor(name: str) -> None:
    for version in (11, 21):
        assert check_kernel(name, [normal(1, 0, 4)], {}, version=version)[0].shape == (0, 4)


@pytest.mark.parametrize("name", FAMILY)
def test_softmax_type_inference(name: str) -> None:
    given_type = TensorType("f16", ("N", None, 4))
    infer = declared(name).infer
    assert infer is not None
    assert list(infer({"axis": 1}, [given_type])) == [given_type]
    with pytest.raises(GraphError, match="axis 3 is out of range for 3 axes"):
        infer({"axis": 3}, [given_type])
