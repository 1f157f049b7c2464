"""Pools and LRN: ONNX's cases, ONNX Runtime over a table, formulas, NaN, types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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

OPS = (
    "MaxPool",
    "AveragePool",
    "LpPool",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "GlobalLpPool",
    "LRN",
)


@pytest.mark.parametrize("case", cases_of(OPS), ids=str)
def test_onnx_case(case: NodeCase) -> None:
    check(case)


def test_every_op_is_tested() -> None:
    assert uncovered(OPS, tested=["GlobalLpPool"]) == []


WINDOWS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 8, 8), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((2, 3, 9, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 3, 9, 8), {"kernel_shape": [3, 2], "strides": [1, 3], "pads": [2, 0, 1, 1]}),
    ((2, 3, 10, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ((2, 3, 10, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}),
    ((1, 2, 7, 7), {"kernel_shape": [2, 2], "strides": [3, 3], "pads": [0, 0, 1, 1], "ceil_mode": 1}),
    ((1, 2, 7, 6), {"kernel_shape": [3, 2], "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 2, 7, 6), {"kernel_shape": [3, 2], "auto_pad": "SAME_LOWER", "strides": [2, 1]}),
    ((1, 2, 7, 6), {"kernel_shape": [3, 2], "auto_pad": "VALID", "strides": [2, 1]}),
    ((2, 3, 9, 9), {"kernel_shape": [3, 2], "dilations": [2, 3]}),
    ((2, 3, 9), {"kernel_shape": [4], "strides": [2], "pads": [1, 2]}),
    ((1, 2, 5, 6, 7), {"kernel_shape": [2, 3, 2], "strides": [1, 2, 2], "pads": [0, 1, 1, 1, 1, 0]}),
    ((2, 3, 5, 5), {"kernel_shape": [1, 1]}),
]


@pytest.mark.parametrize(("shape", "attributes"), WINDOWS)
def test_max_pool_agrees_with_runtime_and_formula(shape: tuple[int, ...], attributes: dict[str, Any]) -> None:
    check_all("MaxPool", [normal(1, *shape)], attributes)


@pytest.mark.parametrize(("shape", "attributes"), WINDOWS)
@pytest.mark.parametrize("order", [0, 1])
def test_max_pool_indices(shape: tuple[int, ...], attributes: dict[str, Any], order: int) -> None:
    check_all("MaxPool", [normal(2, *shape)], {**attributes, "storage_order": order}, count=2)


@pytest.mark.parametrize(("shape", "attributes"), WINDOWS)
@pytest.mark.parametrize("include", [0, 1])
def test_average_pool_agrees(shape: tuple[int, ...], attributes: dict[str, Any], include: int) -> None:
    check_all("AveragePool", [normal(1, *shape)], {**attributes, "count_include_pad": include})


@pytest.mark.parametrize(("shape", "attributes"), [row for row in WINDOWS if "ceil_mode" not in row[1]])
@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pool_agrees(shape: tuple[int, ...], attributes: dict[str, Any], p: int) -> None:
    check_all("LpPool", [normal(1, *shape)], {**attributes, "p": p})


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 5, 4), (1, 2, 3, 4, 5)])
@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("GlobalAveragePool", {}),
        ("GlobalMaxPool", {}),
        ("GlobalLpPool", {}),
        ("GlobalLpPool", {"p": 1}),
        ("GlobalLpPool", {"p": 3}),
    ],
)
def test_global_pools_agree(shape: tuple[int, ...], name: str, attributes: dict[str, Any]) -> None:
    check_all(name, [normal(1, *shape)], attributes)


@pytest.mark.parametrize("size", [1, 3, 5, 9])
def test_lrn_agrees(size: int) -> None:
    attributes = {"size": size, "alpha": 0.3, "beta": 0.6, "bias": 1.5}
    check_all("LRN", [normal(1, 2, 6, 4, 3)], attributes)


@pytest.mark.parametrize("dtype", ["i8", "u8"])
def test_max_pool_of_integers_ignores_its_padding(dtype: str) -> None:
    x = np.full((1, 1, 3, 3), {"i8": -100, "u8": 0}[dtype], {"i8": np.int8, "u8": np.uint8}[dtype])
    attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    check_all("MaxPool", [x], attributes)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
@pytest.mark.parametrize("name", ["MaxPool", "AveragePool"])
def test_pools_of_other_floats(name: str, dtype: str) -> None:
    x = normal(3, 2, 3, 7, 7, dtype=dtype)
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    (result,) = check_kernel(name, [x], attributes)
    (exact,) = by_kernel(name, [x.astype(np.float64)], attributes)
    assert_same([result], [exact.astype(x.dtype)], rtol=1e-12 if dtype == "f64" else 2**-7)
    assert_same(by_formula(name, [x], attributes), [result], rtol=2**-7)


@pytest.mark.parametrize("name", ["MaxPool", "AveragePool", "LpPool"])
def test_a_window_with_nan_is_nan(name: str) -> None:
    x = normal(1, 1, 2, 6, 6)
    x[0, 1, 3, 3] = np.nan
    (result,) = by_kernel(name, [x], {"kernel_shape": [2, 2], "strides": [2, 2]})
    expected = np.zeros((1, 2, 3, 3), bool)
    expected[0, 1, 1, 1] = True
    assert (np.isnan(result) == expected).all()


def test_max_pool_indices_never_point_to_padding() -> None:
    x = np.full((1, 1, 2, 2), -np.inf, np.float32)
    x[0, 0, 1, 1] = np.nan
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    result, indices = by_kernel("MaxPool", [x], attributes, count=2)
    assert indices.ravel().tolist() == [0, 1, 2, 3]
    assert np.isnan(result[0, 0, 1, 1])


@pytest.mark.parametrize(
    ("shape", "attributes", "expected"),
    [
        (("N", 64, 112, 112), {"strides": [2, 2], "pads": [1] * 4}, ("N", 64, 56, 56)),
        (("N", "C", "H", "W"), {"pads": [1] * 4}, ("N", "C", "H", "W")),
        ((1, 2, "H", 7), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}, (1, 2, None, 4)),
        ((1, 2, None, 8), {"strides": [2, 2], "ceil_mode": 1}, (1, 2, None, 4)),
    ],
)
def test_pool_type_inference(shape: Any, attributes: dict[str, Any], expected: Any) -> None:
    op = declared("MaxPool")
    assert op.infer is not None
    found = op.infer(
        complete("MaxPool", OPSET, {"kernel_shape": (3, 3), **attributes}), [TensorType("f16", shape)]
    )
    assert list(found) == [TensorType("f16", expected), TensorType("i64", expected)]


@pytest.mark.parametrize(
    ("shape", "attributes", "fact"),
    [
        ((1, 2, 5), {"kernel_shape": (2, 2)}, "input has 3 axes, but a 2-D kernel needs 4"),
        ((1, 2, 2, 2), {"kernel_shape": (3, 3)}, "a window of size 3 does not fit into an axis of size 2"),
        ((1, 2, 5, 5), {"kernel_shape": (3, 3), "strides": (1,)}, "strides has 1 numbers, expected 2"),
        ((1, 2, 5, 5), {"kernel_shape": (3, 3), "auto_pad": "SAME"}, "auto_pad cannot be 'SAME'"),
    ],
)
def test_pool_refuses_incompatible_types(shape: Any, attributes: dict[str, Any], fact: str) -> None:
    op = declared("AveragePool")
    assert op.infer is not None
    with pytest.raises(GraphError, match=fact):
        op.infer(complete("AveragePool", OPSET, attributes), [TensorType("f32", shape)])
