"""Forms of ops in older opsets against ONNX Runtime; opsets below 7 against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nncdbg.dtypes import ONNX
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import complete
from nncdbg.errors import GraphError
from tests.engine.ops.onnx_cases import assert_agrees, execute, type_of

GENERATOR = np.random.default_rng(3)


def f(*shape: int) -> Any:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def i(*numbers: Any) -> Any:
    return np.array(numbers, np.int64)


REDUCTIONS = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"]

ROWS: list[tuple[str, int, tuple[Any, ...], dict[str, Any], int]] = [
    *((f"Reduce{r}", 11, (np.abs(f(3, 4, 5)),), {"axes": [-1, 0], "keepdims": 0}, 1) for r in REDUCTIONS),
    *((f"Reduce{r}", 12, (np.abs(f(3, 4)),), {}, 1) for r in REDUCTIONS),
    *((f"Reduce{r}", 18, (np.abs(f(3, 4, 5)), i(1)), {"keepdims": 0}, 1) for r in REDUCTIONS),
    ("ReduceSum", 13, (f(2, 3), i()), {"noop_with_empty_axes": 1}, 1),
    ("ReduceSum", 13, (f(2, 3), i()), {}, 1),
    ("ReduceMean", 13, (f(2, 3).astype(np.float64),), {"axes": [1]}, 1),
    ("ReduceSum", 11, (i([-7, 2], [4, 5]),), {"axes": [0]}, 1),
    ("ReduceMax", 13, (i([-7, 2], [4, 5]),), {"axes": [0]}, 1),
    ("ArgMax", 11, (f(3, 4),), {"axis": 1, "keepdims": 0}, 1),
    ("ArgMin", 13, (i([1, 1], [1, 1]),), {"axis": 1, "select_last_index": 1}, 1),
    ("Squeeze", 11, (f(1, 3, 1, 2),), {"axes": [0, -2]}, 1),
    ("Squeeze", 12, (f(1, 3, 1, 2),), {}, 1),
    ("Squeeze", 13, (f(1, 3, 1, 2), i(2)), {}, 1),
    ("Unsqueeze", 11, (f(3, 2),), {"axes": [0, -1]}, 1),
    ("Unsqueeze", 13, (f(3, 2), i(-1, 0)), {}, 1),
    ("Slice", 9, (f(5, 6, 7),), {"starts": [1, -4], "ends": [100, -1], "axes": [0, 2]}, 1),
    ("Slice", 9, (f(5, 6),), {"starts": [3], "ends": [1]}, 1),
    ("Slice", 13, (f(5, 6), i(-1, 4), i(-(2**62), 0), i(0, 1), i(-1, -2)), {}, 1),
    ("Slice", 10, (f(5, 6), i(1), i(2**62)), {}, 1),
    ("Pad", 10, (f(2, 3),), {"pads": [0, 1, 2, 0], "value": 1.5}, 1),
    ("Pad", 10, (f(4, 5),), {"pads": [1, 2, 1, 0], "mode": "reflect"}, 1),
    ("Pad", 10, (f(4, 5),), {"pads": [-1, 0, 0, -2]}, 1),
    ("Pad", 13, (f(4, 5), i(0, 1, 2, 3)), {"mode": "edge"}, 1),
    ("Pad", 18, (f(4, 5), i(-1, 2), np.array(7, np.float32), i(1)), {}, 1),
    ("Pad", 19, (f(4, 5), i(2, 1), None, i(-1)), {"mode": "wrap"}, 1),
    ("Clip", 7, (f(3, 4),), {"min": -0.25, "max": 0.5}, 1),
    ("Clip", 10, (f(3, 4),), {"min": 0.1}, 1),
    ("Clip", 11, (f(3, 4), None, np.array(0.5, np.float32)), {}, 1),
    ("Clip", 13, (f(3, 4), np.array(1, np.float32), np.array(-1, np.float32)), {}, 1),
    ("Clip", 12, (i(-5, 0, 5), np.array(-1)), {}, 1),
    ("Split", 11, (f(6, 4),), {"split": [1, 2, 3]}, 3),
    ("Split", 11, (f(6, 4),), {"axis": 1}, 2),
    ("Split", 13, (f(6, 4), i(4, 2)), {"axis": 0}, 2),
    ("Split", 13, (f(6, 4),), {"axis": 0}, 3),
    ("Split", 18, (f(7, 4),), {"axis": 0, "num_outputs": 3}, 3),
    ("TopK", 9, (f(3, 9),), {"k": 4}, 2),
    ("TopK", 10, (f(3, 9, 2), i(2)), {"axis": 1}, 2),
    ("TopK", 11, (f(3, 40), i(2)), {"largest": 0}, 2),
    ("TopK", 11, (GENERATOR.integers(0, 4, (5, 64)), i(5)), {}, 2),
    ("TopK", 11, (f(64, 3, 2), i(4)), {"axis": 0}, 2),
    ("Flatten", 9, (f(2, 3, 4),), {"axis": 2}, 1),
    ("Flatten", 11, (f(2, 3, 4),), {"axis": -1}, 1),
    ("Flatten", 13, (f(2, 0, 4),), {"axis": 0}, 1),
    ("Reshape", 7, (f(2, 3, 4), i(0, -1)), {}, 1),
    ("Reshape", 14, (f(0, 3), i(3, 0)), {"allowzero": 1}, 1),
    ("Shape", 13, (f(2, 3, 4),), {}, 1),
    ("Shape", 15, (f(2, 3, 4),), {"start": -2, "end": 100}, 1),
    ("Trilu", 14, (f(4, 5), np.array(-1)), {"upper": 0}, 1),
    ("OneHot", 11, (i(0, -1, 5, 2), i(3), np.array([0.5, 2], np.float32)), {"axis": 0}, 1),
    ("Gather", 11, (f(4, 5), i([-1, 0], [2, 1])), {"axis": 1}, 1),
    ("GatherElements", 11, (f(4, 5), i([0, -1], [2, 1])), {"axis": 0}, 1),
    ("GatherND", 12, (f(2, 3, 4), i([[1]], [[0]])), {"batch_dims": 1}, 1),
    ("ScatterElements", 11, (f(3, 3), i([0, 2], [1, 0]), f(2, 2)), {"axis": 1}, 1),
    ("ScatterElements", 18, (f(3, 3), i([0, 0, 0]), f(1, 3)), {"reduction": "max"}, 1),
    ("ScatterND", 16, (f(4, 2), i([1], [1]), f(2, 2)), {"reduction": "mul"}, 1),
    ("Scatter", 9, (f(3, 3), i([0, 2, 1]), f(1, 3)), {}, 1),
    ("Compress", 11, (f(3, 4), np.array([True, False, True])), {"axis": 1}, 1),
    ("NonZero", 13, (np.array([[1, 0], [0, 2]], np.float32),), {}, 1),
    ("Tile", 6, (f(2, 3), i(2, 2)), {}, 1),
    ("Expand", 8, (f(3, 1), i(2, 1, 4)), {}, 1),
    ("Range", 11, (np.array(1.0, np.float32), np.array(-2, np.float32), np.array(-0.7, np.float32)), {}, 1),
    ("Range", 11, (np.array(3), np.array(30), np.array(4)), {}, 1),
    ("CumSum", 14, (f(3, 5), np.array(-1)), {"exclusive": 1, "reverse": 1}, 1),
    ("Unique", 11, (i(3, 1, 3, 2),), {"sorted": 0}, 4),
    ("Unique", 11, (i([3, 1], [2, 2], [3, 1]),), {"axis": 0}, 4),
    ("ReverseSequence", 10, (f(4, 3, 2), i(1, 4, 2)), {"time_axis": 0, "batch_axis": 1}, 1),
    ("ReverseSequence", 10, (f(3, 4, 2), i(1, 4, 2)), {"time_axis": 1, "batch_axis": 0}, 1),
    ("DepthToSpace", 11, (f(2, 8, 2, 3),), {"blocksize": 2, "mode": "CRD"}, 1),
    ("SpaceToDepth", 13, (f(2, 2, 4, 6),), {"blocksize": 2}, 1),
    ("EyeLike", 9, (i([0, 0, 0], [0, 0, 0]),), {"k": 1, "dtype": ONNX["f32"]}, 1),
    ("ConstantOfShape", 9, (i(2, 3),), {}, 1),
    ("Mod", 13, (i(-7, 7, -7, 7), i(3, -3, -3, 3)), {}, 1),
    ("Mod", 13, (i(-7, 7, -7, 7), i(3, -3, -3, 3)), {"fmod": 1}, 1),
    ("Div", 14, (i(-7, 7, -7, 7), i(2, -2, -2, 2)), {}, 1),
    ("Pow", 13, (i(2, -3, 1), i(3, 3, 5)), {}, 1),
    ("Pow", 12, (f(4) ** 2, i(3, -2, 0, 1)), {}, 1),
    ("Pow", 7, (f(4), np.array(3, np.float32)), {}, 1),
    ("Max", 8, (f(3, 1), f(4), f(1, 1)), {}, 1),
    ("Mean", 8, (f(3, 1), f(4), f(1)), {}, 1),
    ("Round", 11, (np.array([-2.5, -0.5, 0.5, 1.5, 2.5], np.float32),), {}, 1),
    ("IsInf", 10, (np.array([np.inf, -np.inf, np.nan, 1], np.float32),), {"detect_negative": 0}, 1),
    ("BitShift", 11, (np.array([1, 128], np.uint8), np.array([3, 1], np.uint8)), {"direction": "LEFT"}, 1),
    ("Cast", 9, (np.array([1.9, -1.9, 0], np.float32),), {"to": ONNX["i32"]}, 1),
    ("Cast", 13, (np.array([1e6, -3.5, np.nan], np.float32),), {"to": ONNX["f16"]}, 1),
    ("Cast", 13, (np.array([300, -1], np.int32),), {"to": ONNX["u8"]}, 1),
    ("Cast", 9, (np.array(["3.5", "-INF", "1e-5"], object),), {"to": ONNX["f32"]}, 1),
    ("Cast", 9, (np.array(["12", "-9007199254740993"], object),), {"to": ONNX["i64"]}, 1),
]


@pytest.mark.parametrize(
    ("name", "version", "inputs", "attributes", "outputs"), ROWS, ids=[f"{r[0]}-{r[1]}" for r in ROWS]
)
def test_against_onnx_runtime(
    name: str, version: int, inputs: tuple[Any, ...], attributes: dict[str, Any], outputs: int
) -> None:
    pytest.importorskip("onnxruntime")
    from tests.engine.ops.one_node import check_all

    check_all(name, inputs, attributes, count=outputs, version=version)


LIMITED = [
    ("Add", (4, 3, 2), (3,), {"broadcast": 1, "axis": 1}, (1, 3, 1)),
    ("Sub", (4, 3, 2), (2,), {"broadcast": 1}, (1, 1, 2)),
    ("Mul", (4, 3), (4, 3), {}, (4, 3)),
    ("Div", (4, 3, 2), (4, 3), {"broadcast": 1, "axis": 0}, (4, 3, 1)),
    ("Pow", (4, 3), (), {"broadcast": 1}, (1, 1)),
    ("Less", (4, 3, 2), (3, 2), {"broadcast": 1, "axis": -2}, (1, 3, 2)),
]


@pytest.mark.parametrize(("name", "a", "b", "attributes", "under"), LIMITED, ids=[row[0] for row in LIMITED])
def test_limited_broadcasting_of_opset_6(name: str, a: Any, b: Any, attributes: Any, under: Any) -> None:
    old, new = lookup(name, 6), lookup(name, 13)
    assert old is not None
    assert old.infer is not None
    assert new is not None
    x, y = np.abs(f(*a)), np.abs(np.asarray(f(*b)))
    (actual,) = execute(old, 6, attributes, [x, y])
    (expected,) = execute(new, 13, {}, [x, y.reshape(under)])
    np.testing.assert_array_equal(actual, expected)
    inferred = old.infer(complete(name, 6, attributes), [type_of(x), type_of(y)])
    assert_agrees(inferred[0], actual)


def test_without_broadcast_shapes_must_agree() -> None:
    old = lookup("Add", 6)
    assert old is not None
    with pytest.raises(GraphError, match="differ"):
        execute(old, 6, {}, [f(2, 3), f(3)])


def test_reshape_of_an_empty_batch() -> None:
    op = lookup("Reshape", 14)
    assert op is not None
    for shape, sizes, expected in [((0, 3, 4), (0, -1), (0, 12)), ((2, 0, 4), (-1, 0), (8, 0))]:
        (y,) = execute(op, 14, {}, [np.zeros(shape), i(*sizes)])
        assert y.shape == expected


def test_attribute_forms_of_opset_1() -> None:
    x = f(2, 3)
    forms: list[tuple[str, dict[str, Any], Any]] = [
        ("Reshape", {"shape": (3, 2)}, x.reshape(3, 2)),
        ("Pad", {"paddings": (1, 0, 0, 1)}, np.pad(x, ((1, 0), (0, 1)))),
        ("Concat", {}, x),
        ("Max", {"consumed_inputs": (0,)}, x),
        ("Clip", {"max": 0.5}, np.minimum(x, np.float32(0.5))),
    ]
    for name, attributes, expected in forms:
        op = lookup(name, 1)
        assert op is not None
        (y,) = execute(op, 1, attributes, [x])
        np.testing.assert_array_equal(y, expected)
