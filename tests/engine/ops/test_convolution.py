"""Conv, ConvTranspose, ConvInteger: ONNX's cases, ONNX Runtime over a table, formulas, types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nncdbg.engine.ops import convolution
from nncdbg.engine.ops.schema import complete
from nncdbg.errors import GraphError
from nncdbg.ir.records import TensorType
from tests.engine.ops.one_node import (
    OPSET,
    assert_same,
    by_formula,
    by_kernel,
    by_runtime,
    check_all,
    check_kernel,
    declared,
    normal,
)
from tests.engine.ops.onnx_cases import NodeCase, cases_of, check, type_of

OPS = ("Conv", "ConvTranspose", "ConvInteger")


@pytest.mark.parametrize("case", cases_of(OPS), ids=str)
def test_onnx_case(case: NodeCase) -> None:
    check(case)


# x, weight, bias, attributes
CONV: list[tuple[tuple[int, ...], tuple[int, ...], bool, dict[str, Any]]] = [
    ((1, 3, 9, 9), (4, 3, 3, 3), True, {}),
    ((2, 3, 9, 8), (4, 3, 3, 2), False, {"strides": [2, 1], "pads": [1, 0, 2, 1]}),
    ((2, 4, 9, 9), (6, 2, 3, 3), True, {"group": 2, "dilations": [2, 1], "pads": [2, 1, 2, 1]}),
    ((2, 5, 7, 7), (5, 1, 3, 3), True, {"group": 5, "pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ((2, 3, 7, 7), (6, 1, 3, 3), False, {"group": 3, "dilations": [1, 2]}),
    ((2, 6, 5, 5), (4, 6, 1, 1), True, {}),
    ((2, 6, 5, 5), (4, 3, 1, 1), True, {"group": 2, "strides": [2, 2]}),
    ((2, 6, 5, 5), (4, 6, 1, 1), True, {"pads": [1, 0, 0, 2]}),
    ((1, 3, 8, 7), (2, 3, 3, 3), True, {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 3, 8, 7), (2, 3, 2, 2), True, {"auto_pad": "SAME_LOWER"}),
    ((1, 3, 8, 7), (2, 3, 3, 2), True, {"auto_pad": "VALID", "strides": [3, 2]}),
    ((2, 3, 11), (4, 3, 3), True, {"strides": [2], "pads": [1, 2]}),
    ((2, 4, 11), (4, 1, 5), True, {"group": 4, "dilations": [2]}),
    ((1, 2, 5, 6, 5), (3, 2, 2, 3, 3), True, {"pads": [1, 1, 1, 0, 1, 2], "strides": [1, 2, 2]}),
    ((1, 4, 5, 4, 5), (4, 2, 1, 2, 3), False, {"group": 2, "dilations": [1, 1, 2]}),
    ((0, 3, 5, 5), (4, 3, 3, 3), True, {}),
]


def conv_inputs(x: tuple[int, ...], weight: tuple[int, ...], bias: bool, dtype: str = "f32") -> list[Any]:
    inputs = [normal(1, *x, dtype=dtype), normal(2, *weight, dtype=dtype)]
    return [*inputs, normal(3, weight[0], dtype=dtype)] if bias else inputs


@pytest.mark.parametrize(("x", "weight", "bias", "attributes"), CONV)
def test_conv_agrees_with_runtime_and_formula(
    x: tuple[int, ...], weight: tuple[int, ...], bias: bool, attributes: dict[str, Any]
) -> None:
    check_all("Conv", conv_inputs(x, weight, bias), attributes)


@pytest.mark.parametrize("group", [1, 2])
def test_conv_in_many_strips_equals_conv_in_one(monkeypatch: pytest.MonkeyPatch, group: int) -> None:
    inputs = conv_inputs((2, 4, 11, 9), (4, 4 // group, 3, 3), True)
    attributes = {"pads": [1, 1, 1, 1], "group": group}
    whole = by_kernel("Conv", inputs, attributes)
    for elements in (1, 500, 1000):
        monkeypatch.setattr(convolution, "STRIP_ELEMENTS", elements)
        assert_same(by_kernel("Conv", inputs, attributes), whole)


@pytest.mark.parametrize(("x", "weight", "bias", "attributes"), CONV)
def test_conv_formula_of_many_products(
    monkeypatch: pytest.MonkeyPatch,
    x: tuple[int, ...],
    weight: tuple[int, ...],
    bias: bool,
    attributes: dict[str, Any],
) -> None:
    monkeypatch.setattr(convolution, "LARGE", -1)
    inputs = conv_inputs(x, weight, bias)
    assert_same(by_formula("Conv", inputs, attributes), by_kernel("Conv", inputs, attributes))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
@pytest.mark.parametrize("weight", [(4, 2, 3, 3), (4, 2, 1, 1), (4, 1, 3, 3)])
def test_conv_is_rounded_once(dtype: str, weight: tuple[int, ...]) -> None:
    group = 4 // weight[1] if weight[1] > 1 else 4
    inputs = conv_inputs((2, 4, 6, 6), weight, True, dtype)
    (result,) = check_kernel("Conv", inputs, {"group": group})
    wide = [array.astype(np.float64) for array in inputs]
    (exact,) = by_kernel("Conv", wide, {"group": group})
    step = {"f16": 2**-10, "bf16": 2**-7, "f64": 1e-12}[dtype]
    np.testing.assert_allclose(result.astype(np.float64), exact, rtol=step, atol=1e-5)
    assert_same(by_formula("Conv", inputs, {"group": group}), [result], rtol=2 * step, atol=step)


@pytest.mark.parametrize("weight", [(3, 3, 3, 3), (3, 3, 1, 1), (3, 1, 3, 3)])
def test_conv_propagates_nan_to_its_windows(weight: tuple[int, ...]) -> None:
    x = normal(1, 1, 3, 6, 6)
    x[0, 1, 2, 2] = np.nan
    group = 3 if weight[1] == 1 else 1
    attributes = {"group": group, "pads": [weight[2] // 2] * 4}
    (result,) = by_kernel("Conv", [x, normal(2, *weight)], attributes)
    reach = weight[2] // 2
    seen = np.zeros((6, 6), bool)
    seen[2 - reach : 3 + reach, 2 - reach : 3 + reach] = True
    channels = [1] if group == 3 else [0, 1, 2]
    for channel in range(3):
        assert (np.isnan(result[0, channel]) == (seen if channel in channels else False)).all()


TRANSPOSED: list[tuple[tuple[int, ...], tuple[int, ...], bool, dict[str, Any]]] = [
    ((1, 3, 4, 4), (3, 2, 3, 3), True, {}),
    ((2, 3, 4, 5), (3, 2, 3, 2), True, {"strides": [2, 3], "pads": [1, 0, 0, 1]}),
    ((2, 4, 4, 5), (4, 3, 3, 3), True, {"group": 2, "strides": [2, 2], "output_padding": [1, 0]}),
    ((1, 4, 4, 4), (4, 1, 3, 3), False, {"group": 4, "dilations": [2, 1]}),
    ((1, 2, 4, 4), (2, 2, 3, 3), True, {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 2, 4, 4), (2, 2, 3, 3), True, {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    ((1, 2, 4, 4), (2, 2, 3, 3), True, {"output_shape": [10, 8], "strides": [3, 2]}),
    ((1, 2, 4, 4), (2, 2, 3, 3), True, {"output_shape": [8, 8], "strides": [2, 2]}),
    (
        (1, 2, 4, 4),
        (2, 2, 4, 4),
        True,
        {"output_shape": [7, 7], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    ),
    ((2, 3, 5), (3, 4, 3), True, {"strides": [2]}),
    ((1, 2, 3, 3, 2), (2, 2, 2, 2, 3), True, {"strides": [1, 2, 2]}),
]


@pytest.mark.parametrize(("x", "weight", "bias", "attributes"), TRANSPOSED)
def test_conv_transpose_agrees_with_runtime(
    x: tuple[int, ...], weight: tuple[int, ...], bias: bool, attributes: dict[str, Any]
) -> None:
    inputs = [normal(1, *x), normal(2, *weight)]
    if bias:
        inputs.append(normal(3, weight[1] * attributes.get("group", 1)))
    check_all("ConvTranspose", inputs, attributes)


@pytest.mark.parametrize("attributes", [{}, {"pads": [1, 1, 1, 1], "strides": [2, 1]}, {"group": 2}])
def test_conv_integer_agrees_with_runtime(attributes: dict[str, Any]) -> None:
    rng = np.random.default_rng(4)
    x = rng.integers(0, 256, (2, 4, 6, 6)).astype(np.uint8)
    weight = rng.integers(0, 256, (4, 4 // attributes.get("group", 1), 3, 3)).astype(np.uint8)
    check_all("ConvInteger", [x, weight, np.array(7, np.uint8), np.array(3, np.uint8)], attributes)


def inferred(
    name: str, shapes: list[tuple[Any, ...] | None], attributes: dict[str, Any]
) -> TensorType | None:
    op = declared(name)
    assert op.infer is not None
    types = [None if shape is None else TensorType("f32", shape) for shape in shapes]
    inferred: TensorType | None = op.infer(complete(name, OPSET, attributes), types)[0]
    return inferred


@pytest.mark.parametrize(
    ("x", "weight", "attributes", "expected"),
    [
        (("N", 3, 224, 224), (64, 3, 7, 7), {"strides": [2, 2], "pads": [3] * 4}, ("N", 64, 112, 112)),
        (("N", 3, "H", "W"), (8, 3, 3, 3), {"pads": [1] * 4}, ("N", 8, "H", "W")),
        (("N", 3, "H", "W"), (8, 3, 3, 3), {}, ("N", 8, None, None)),
        (("N", 3, "H", 9), (8, 3, 3, 3), {"auto_pad": "SAME_UPPER"}, ("N", 8, "H", 9)),
        (("N", 3, "H", 9), (8, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, ("N", 8, None, 5)),
        ((None, "C", 5, 5), ("M", 3, 3, 3), {}, (None, "M", 3, 3)),
        ((1, 3, 5, 5), (4, 3, "K", 3), {}, (1, 4, None, None)),
        ((1, 3, 5, 5), (4, 3, "K", None), {"kernel_shape": [3, 3]}, (1, 4, 3, 3)),
    ],
)
def test_conv_type_inference(x: Any, weight: Any, attributes: dict[str, Any], expected: Any) -> None:
    assert inferred("Conv", [x, weight], attributes) == TensorType("f32", expected)


@pytest.mark.parametrize(
    ("x", "weight", "bias", "attributes", "fact"),
    [
        ((1, 3, 5, 5), (8, 64, 3, 3), (8,), {}, "weight needs 64 channels, but input has 3"),
        (
            (1, 3, 5, 5),
            (8, 2, 3, 3),
            None,
            {"group": 2},
            "weight needs 4 channels in 2 groups, but input has 3",
        ),
        ((1, 3, 5), (8, 3, 3, 3), None, {}, "input has 3 axes, but weight has 4"),
        ((1, 3, 5, 5), (8, 3, 3, 3), (4,), {}, "bias has 4 elements, weight has 8 output channels"),
        (
            (1, 3, 2, 2),
            (8, 3, 3, 3),
            None,
            {},
            "a window of size 3 does not fit into an axis of size 2 with padding 0",
        ),
        ((1, 3, 5, 5), (8, 3, 3, 3), None, {"pads": [1, 1]}, "pads has 2 numbers, expected 4"),
        ((1, 3, 5, 5), (8, 3, 3, 3), None, {"kernel_shape": [2, 3]}, "kernel_shape is"),
        (
            (1, 4, 5, 5),
            (3, 2, 3, 3),
            None,
            {"group": 2},
            "3 output channels cannot be split evenly into 2 groups",
        ),
    ],
)
def test_conv_refuses_incompatible_types(
    x: Any, weight: Any, bias: Any, attributes: dict[str, Any], fact: str
) -> None:
    with pytest.raises(GraphError, match=fact):
        inferred("Conv", [x, weight, bias], attributes)


def test_conv_transpose_type_inference() -> None:
    attributes = {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}
    found = inferred("ConvTranspose", [("N", 8, "H", 7), (8, 4, 3, 3)], attributes)
    assert found == TensorType("f32", ("N", 4, None, 14))
    with pytest.raises(GraphError, match="weight needs 8 channels, but input has 3"):
        inferred("ConvTranspose", [(1, 3, 5, 5), (8, 4, 3, 3)], {})


def test_runtime_harness_detects_a_wrong_result() -> None:
    inputs = conv_inputs((1, 3, 5, 5), (4, 3, 3, 3), False)
    (right,) = by_runtime("Conv", inputs, {})
    with pytest.raises(AssertionError):
        assert_same([right + 1], [right])
    assert type_of(right) == inferred("Conv", [(1, 3, 5, 5), (4, 3, 3, 3)], {})
