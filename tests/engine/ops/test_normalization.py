"""Normalizations: ONNX's cases, ONNX Runtime or the formula as oracle, old opsets, NaN, types."""

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
    "BatchNormalization",
    "InstanceNormalization",
    "GroupNormalization",
    "LayerNormalization",
    "RMSNormalization",
    "LpNormalization",
    "MeanVarianceNormalization",
)


@pytest.mark.parametrize("case", cases_of(OPS), ids=str)
def test_onnx_case(case: NodeCase) -> None:
    check(case)


def test_every_op_has_a_case() -> None:
    assert uncovered(OPS) == []


def batch_inputs(*shape: int, dtype: str = "f32") -> list[Any]:
    channels = shape[1]
    return [
        normal(1, *shape, dtype=dtype),
        *(normal(seed, channels, dtype=dtype) for seed in (2, 3, 4)),
        np.abs(normal(5, channels, dtype=dtype)) + normal(0, 0, dtype=dtype).dtype.type(0.1),
    ]


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 5), (2, 3, 4, 5), (1, 2, 3, 4, 5)])
@pytest.mark.parametrize("version", [7, 9, 14, 15])
def test_batch_normalization_agrees(shape: tuple[int, ...], version: int) -> None:
    check_all("BatchNormalization", batch_inputs(*shape), {"epsilon": 0.01}, version=version)


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 4, 5)])
def test_batch_normalization_in_training_mode(shape: tuple[int, ...]) -> None:
    inputs = batch_inputs(*shape)
    attributes = {"training_mode": 1, "momentum": 0.7}
    results = check_kernel("BatchNormalization", inputs, attributes, count=3)
    axes = (0, *range(2, len(shape)))
    x = inputs[0].astype(np.float64)
    column = (-1, *[1] * (len(shape) - 2))
    mean, var = x.mean(axes), x.var(axes)
    plain = (x - mean.reshape(column)) / np.sqrt(var.reshape(column) + 1e-5)
    np.testing.assert_allclose(
        results[0], plain * inputs[1].reshape(column) + inputs[2].reshape(column), rtol=1e-3, atol=1e-4
    )
    np.testing.assert_allclose(results[1], inputs[3] * 0.7 + mean * 0.3, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(results[2], inputs[4] * 0.7 + var * 0.3, rtol=1e-4)
    assert_same(by_formula("BatchNormalization", inputs, attributes), results)
    assert len(check_kernel("BatchNormalization", inputs, attributes)) == 1


def test_old_batch_normalization_with_extra_outputs_is_in_training_mode() -> None:
    inputs = batch_inputs(4, 3, 5)
    results = check_kernel("BatchNormalization", inputs, {}, count=5, version=9)
    fresh = by_kernel("BatchNormalization", inputs, {"training_mode": 1}, count=3)
    assert_same(results[:3], fresh)
    np.testing.assert_allclose(results[3], inputs[0].mean((0, 2)), atol=1e-6)
    (flagged,) = by_kernel("BatchNormalization", inputs, {"is_test": 0}, version=6)
    assert_same([flagged], fresh[:1])
    (tested,) = by_kernel("BatchNormalization", inputs, {"is_test": 1}, version=6)
    assert_same([tested], by_kernel("BatchNormalization", inputs, {}))


def test_batch_normalization_7_has_statistics_per_element() -> None:
    x, parameters = normal(1, 2, 3, 4), [np.abs(normal(seed, 3, 4)) for seed in (2, 3, 4, 5)]
    (result,) = check_kernel("BatchNormalization", [x, *parameters], {"spatial": 0}, version=7)
    scale, bias, mean, var = parameters
    np.testing.assert_allclose(result, (x - mean) / np.sqrt(var + 1e-5) * scale + bias, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (1, 2, 3, 4, 5)])
def test_instance_normalization_agrees(shape: tuple[int, ...]) -> None:
    check_all("InstanceNormalization", batch_inputs(*shape)[:3], {"epsilon": 0.01})


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("shape", [(2, 4), (2, 4, 3, 5)])
def test_group_normalization_is_its_formula(groups: int, shape: tuple[int, ...]) -> None:
    inputs = batch_inputs(*shape)[:3]
    check_all("GroupNormalization", inputs, {"num_groups": groups}, rtol=1e-3)
    by_group = [inputs[0], normal(2, groups), normal(3, groups)]
    check_all("GroupNormalization", by_group, {"num_groups": groups}, version=18, rtol=1e-3)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
@pytest.mark.parametrize("bias", [False, True])
def test_layer_normalization_agrees(axis: int, bias: bool) -> None:
    x = normal(1, 2, 3, 4)
    inputs = [x, *(normal(seed, *x.shape[axis:]) for seed in (2, 3)[: 1 + bias])]
    check_all("LayerNormalization", inputs, {"axis": axis, "epsilon": 0.01}, count=3)


@pytest.mark.parametrize("axis", [0, -1, -2])
def test_rms_normalization_agrees(axis: int) -> None:
    x = normal(1, 2, 3, 4)
    check_all("RMSNormalization", [x, normal(2, *x.shape[axis:])], {"axis": axis}, version=23)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_lp_normalization_agrees(p: int, axis: int) -> None:
    check_all("LpNormalization", [normal(1, 3, 4, 5)], {"p": p, "axis": axis})


def test_lp_normalization_of_zeros_is_zero() -> None:
    (result,) = by_kernel("LpNormalization", [np.zeros((2, 3), np.float32)], {})
    assert not result.any()


@pytest.mark.parametrize("axes", [[0, 2, 3], [1], [-1, 0]])
def test_mean_variance_normalization_agrees(axes: list[int]) -> None:
    check_all("MeanVarianceNormalization", [normal(1, 2, 3, 4, 5) + 3], {"axes": axes}, rtol=1e-3)


CALLS: list[tuple[str, list[Any], dict[str, Any], int]] = [
    ("BatchNormalization", [(2, 3, 4), (3,), (3,), (3,), (3,)], {}, OPSET),
    ("InstanceNormalization", [(2, 3, 4), (3,), (3,)], {}, OPSET),
    ("GroupNormalization", [(2, 4, 3), (4,), (4,)], {"num_groups": 2}, OPSET),
    ("LayerNormalization", [(2, 3, 8), (8,), (8,)], {}, OPSET),
    ("RMSNormalization", [(2, 3, 8), (8,)], {}, 23),
    ("LpNormalization", [(2, 3, 8)], {}, OPSET),
    ("MeanVarianceNormalization", [(2, 3, 8, 2)], {}, OPSET),
]


@pytest.mark.parametrize(("name", "shapes", "attributes", "version"), CALLS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_other_floats_are_rounded_once(
    name: str, shapes: list[Any], attributes: dict[str, Any], version: int, dtype: str
) -> None:
    inputs = [np.abs(normal(seed, *shape, dtype=dtype)) for seed, shape in enumerate(shapes)]
    (result,) = check_kernel(name, inputs, attributes, version=version)
    wide = [array.astype(np.float64) for array in inputs]
    (exact,) = by_kernel(name, wide, attributes, version=version)
    step = {"f16": 2**-10, "bf16": 2**-7, "f64": 1e-12}[dtype]
    np.testing.assert_allclose(result.astype(np.float64), exact, rtol=2 * step, atol=step / 10)
    if declared(name, version).formula is not None:
        micro = by_formula(name, inputs, attributes, version=version)
        assert_same(micro[:1], [result], rtol=4 * step, atol=step)


@pytest.mark.parametrize(("name", "shapes", "attributes", "version"), CALLS)
def test_nan_propagates_within_its_normalization_group(
    name: str, shapes: list[Any], attributes: dict[str, Any], version: int
) -> None:
    inputs = [np.abs(normal(seed, *shape)) for seed, shape in enumerate(shapes)]
    inputs[0][1, 2, 1] = np.nan
    (result,) = by_kernel(name, inputs, attributes, version=version)
    alone = name == "BatchNormalization"
    shared = name == "MeanVarianceNormalization"
    assert np.isnan(result[1, 2]).sum() == (1 if alone else result[1, 2].size)
    assert np.isnan(result[0]).any() == shared
    assert not np.isnan(result[:, 0]).any() or name == "GroupNormalization"


def inferred(name: str, shapes: list[Any], attributes: dict[str, Any]) -> list[TensorType | None]:
    infer = declared(name).infer
    assert infer is not None
    types = [None if shape is None else TensorType("f16", shape) for shape in shapes]
    return list(infer(complete(name, OPSET, attributes), types))


def test_type_inference() -> None:
    found = inferred("LayerNormalization", [("N", "T", 8), (8,)], {})
    kept = TensorType("f32", ("N", "T", 1))
    assert found == [TensorType("f16", ("N", "T", 8)), kept, kept]
    found = inferred("BatchNormalization", [("N", 3, "H", "W"), (3,), (3,), (3,), (3,)], {})
    assert found == [TensorType("f16", ("N", 3, "H", "W")), *[TensorType("f16", (3,))] * 2]


@pytest.mark.parametrize(
    ("name", "shapes", "attributes", "fact"),
    [
        ("BatchNormalization", [(1, 3, 2), (4,)], {}, "scale has 4 elements, but input has 3 channels"),
        ("BatchNormalization", [(1, 3, 2), (3,), (3,), (3,), (5,)], {}, "var has 5 elements"),
        ("InstanceNormalization", [(1, 3), (3,), (3,)], {}, "input has 2 axes, expected at least 3"),
        (
            "GroupNormalization",
            [(1, 3, 2), (3,), (3,)],
            {"num_groups": 2},
            "3 channels cannot be split evenly into 2",
        ),
        ("LayerNormalization", [(2, 3), (4,)], {}, "cannot broadcast scale to the input"),
        ("LayerNormalization", [(2, 3), (3,)], {"axis": 2}, "axis 2 is out of range for 2 axes"),
        ("LpNormalization", [(2, 3)], {"axis": -3}, "axis -3 is out of range for 2 axes"),
    ],
)
def test_incompatible_types_are_refused(
    name: str, shapes: list[Any], attributes: dict[str, Any], fact: str
) -> None:
    with pytest.raises(GraphError, match=fact):
        inferred(name, shapes, attributes)


@pytest.mark.parametrize("stash_type", [1, 10, 16])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(("name", "version"), [("LayerNormalization", 17), ("RMSNormalization", 23)])
def test_a_narrow_stash_type_is_computed_in_f32_as_in_onnxruntime(
    name: str, version: int, dtype: Any, stash_type: int
) -> None:
    """The variance, 90000, exceeds the largest f16."""
    x = (np.arange(-8, 8).reshape(2, 8) * 60).astype(dtype)
    check_kernel(name, [x, np.ones(8, dtype)], {"stash_type": stash_type}, version=version)
