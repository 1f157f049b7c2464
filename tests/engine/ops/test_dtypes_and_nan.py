"""Ops keep element types, and NaN propagates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nncdbg.dtypes import NUMPY, ONNX, name_of
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import complete
from nncdbg.errors import GraphError, RunError
from nncdbg.ir.records import TensorType
from tests.engine.ops.onnx_cases import execute, execute_into, type_of
from tests.presence import present

FLOATS = ["f16", "bf16", "f32", "f64"]
INTEGERS = ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"]
UNARY = [
    "Neg",
    "Abs",
    "Exp",
    "Log",
    "Sqrt",
    "Tanh",
    "Floor",
    "Ceil",
    "Reciprocal",
    "Sin",
    "Cos",
    "Tan",
    "Asin",
    "Acos",
    "Atan",
    "Sinh",
    "Cosh",
    "Asinh",
    "Acosh",
    "Atanh",
    "Sign",
    "Round",
    "Erf",
    "Identity",
]
BINARY = ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean"]
REDUCTIONS = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"]


def both(name: str, inputs: list[Any], version: int = 18, **attributes: Any) -> Any:
    """Return the kernel's result, after checking that the kernel with a buffer gives the same bytes."""
    op = lookup(name, version)
    assert op is not None
    assert op.infer is not None
    (result,) = execute(op, version, attributes, inputs)
    result = np.asarray(result)
    inferred = op.infer(complete(name, version, attributes), [type_of(x) for x in inputs])[0]
    assert inferred is not None
    assert inferred.dtype == name_of(result.dtype)
    if op.accepts_out:
        assert inferred == TensorType(name_of(result.dtype), result.shape)
        into = execute_into(op, version, attributes, inputs, inferred)
        assert into.tobytes() == np.ascontiguousarray(result).tobytes()
    return result


def close(actual: Any, expected: Any, dtype: str) -> None:
    rtol = {"f16": 2e-3, "bf16": 1.6e-2, "f32": 1e-5, "f64": 1e-12}[dtype]
    np.testing.assert_allclose(actual.astype(np.float64), np.asarray(expected, np.float64), rtol=rtol)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", UNARY)
def test_unary_ops_keep_dtype_and_nan(name: str, dtype: str) -> None:
    x = np.array([0.25, np.nan, 0.75], NUMPY[dtype])
    y = both(name, [x])
    assert y.dtype == x.dtype
    assert np.isnan(y[1].astype(np.float64))
    if name not in ("Acosh",):
        assert np.isfinite(y[[0, 2]].astype(np.float64)).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", BINARY)
def test_binary_ops_keep_dtype_and_nan_on_both_sides(name: str, dtype: str) -> None:
    x = np.array([1.5, np.nan, 3.0], NUMPY[dtype])
    y = np.array([[2.0], [np.nan]], NUMPY[dtype])
    z = both(name, [x, y])
    assert z.dtype == x.dtype
    np.testing.assert_array_equal(np.isnan(z.astype(np.float64)), [[False, True, False], [True] * 3])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_keep_nan(name: str, dtype: str) -> None:
    x = np.array([[1.5, 2.0], [np.nan, 2.0]], NUMPY[dtype])
    y = both(f"Reduce{name}", [x, np.array([1])], keepdims=0)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(np.isnan(y.astype(np.float64)), [False, True])


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_narrow_floats_are_summed_in_f32(dtype: str) -> None:
    x = np.ones((1, 5000), NUMPY[dtype])
    for name, expected in [
        ("ReduceSum", 5000),
        ("ReduceMean", 1),
        ("ReduceL1", 5000),
        ("ReduceSumSquare", 5000),
    ]:
        close(both(name, [x, np.array([1])], keepdims=0), [expected], dtype)
    close(both("CumSum", [x, np.array(1)])[:, -1], [5000], dtype)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_arithmetic(dtype: str) -> None:
    a, b = np.array([7, 6, 0], NUMPY[dtype]), np.array([2, 3, 5], NUMPY[dtype])
    for name, expected in [
        ("Add", [9, 9, 5]),
        ("Mul", [14, 18, 0]),
        ("Div", [3, 2, 0]),
        ("Mod", [1, 0, 0]),
        ("Pow", [49, 216, 0]),
        ("Max", [7, 6, 5]),
        ("Min", [2, 3, 0]),
    ]:
        y = both(name, [a, b])
        assert y.dtype == a.dtype
        np.testing.assert_array_equal(y, np.array(expected).astype(NUMPY[dtype]))


@pytest.mark.parametrize("dtype", ["i8", "i16", "i32", "i64"])
def test_signed_division_truncates_and_division_by_zero_does_not_crash(dtype: str) -> None:
    least = np.iinfo(NUMPY[dtype]).min
    a = np.array([-7, 7, -7, -6, 5, -5, least], NUMPY[dtype])
    b = np.array([2, -2, -2, 3, 0, 0, 1], NUMPY[dtype])
    np.testing.assert_array_equal(both("Div", [a, b]), [-3, -3, 3, -2, 0, 0, least])
    np.testing.assert_array_equal(both("Mod", [a, b])[:4], [1, -1, -1, 0])
    np.testing.assert_array_equal(both("Mod", [a, b], fmod=1)[:4], [-1, 1, -1, 0])


def test_integer_powers() -> None:
    base, exponent = np.array([2, 1, -1, -1, 3]), np.array([-1, -5, -3, -2, 0])
    np.testing.assert_array_equal(both("Pow", [base, exponent]), [0, 1, -1, 1, 1])
    np.testing.assert_array_equal(both("Pow", [np.array([2, 3], np.int32), np.array([0.5, 2], "f")]), [1, 9])
    y = both("Pow", [np.array([2.0], NUMPY["bf16"]), np.array([3])])
    assert y.dtype == NUMPY["bf16"]
    assert float(y[0]) == 8


@pytest.mark.parametrize("exponent", [1.0, 2.0, 3.0, 0.5, -1.5])
def test_scalar_exponents(exponent: float) -> None:
    x = np.array([0.1, 1.7, 30.0, np.inf, np.nan], np.float32)
    y = both("Pow", [x, np.array(exponent, np.float32)])
    np.testing.assert_allclose(y, x.astype(np.float64) ** exponent, rtol=3e-7)


def test_clip_keeps_nan_and_high_wins() -> None:
    x = np.array([np.nan, -5, 5], np.float32)
    low, high = np.array(1, np.float32), np.array([-1], np.float32)
    np.testing.assert_array_equal(both("Clip", [x, low, high]), np.array([np.nan, -1, -1], np.float32))
    np.testing.assert_array_equal(both("Clip", [x]), x)
    for dtype in ("bf16", "i8", "u64"):
        y = both(
            "Clip", [np.array([0, 3, 9], NUMPY[dtype]), np.array(1, NUMPY[dtype]), np.array(4, NUMPY[dtype])]
        )
        np.testing.assert_array_equal(y.astype(int), [1, 3, 4])


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "bool", "c64", "c128", "str", "i4", "f8e5m2"])
def test_where_keeps_every_bit(dtype: str) -> None:
    if dtype == "str":
        x, y = np.array(["a", "b"], object), np.array(["c"], object)
    else:
        x, y = np.array([1, 0]).astype(NUMPY[dtype]), np.array([1]).astype(NUMPY[dtype])
    z = execute(present(lookup("Where", 16)), 16, {}, [np.array([[True, False], [False, True]]), x, y])[0]
    assert z.dtype == x.dtype
    assert z.tolist() == [[x[0], y[0]], [y[0], x[1]]]


def test_where_keeps_nan_payloads() -> None:
    payload = np.array([0x7FC12345, 0xFFC00001], np.uint32).view(np.float32)
    z = both("Where", [np.array([True, False]), payload, payload[::-1]])
    assert z.view(np.uint32).tolist() == [0x7FC12345, 0x7FC12345]


def test_empty_reductions() -> None:
    x = np.zeros((0, 2), np.float32)
    expected = {
        "Sum": 0,
        "Prod": 1,
        "Max": -np.inf,
        "Min": np.inf,
        "L1": 0,
        "LogSumExp": -np.inf,
        "Mean": np.nan,
    }
    for name, value in expected.items():
        np.testing.assert_array_equal(both(f"Reduce{name}", [x, np.array([0])], keepdims=0), [value, value])
    integers = both("ReduceMax", [np.zeros((0,), np.int8), np.array([0])], 20)
    assert integers.tolist() == [-128]
    assert both("ReduceMean", [np.array([-3, 0, 1]), np.array([0])]).tolist() == [0]


def test_log_sum_exp_neither_overflows_nor_loses_infinities() -> None:
    x = np.array([[1000.0, 1000.0], [-np.inf, -np.inf], [np.inf, 0.0], [np.nan, 0.0]], np.float32)
    y = both("ReduceLogSumExp", [x, np.array([1])], keepdims=0)
    np.testing.assert_allclose(y, [1000 + np.log(2), -np.inf, np.inf, np.nan], rtol=1e-6)


def test_nan_sorts_as_the_greatest_value() -> None:
    x = np.array([1.0, np.nan, 3.0], np.float32)
    values, indices = execute(present(lookup("TopK", 11)), 11, {}, [x, np.array([2])], 2)
    np.testing.assert_array_equal(values, [np.nan, 3])
    assert indices.tolist() == [1, 2]
    assert both("ArgMax", [x], axis=0).tolist() == [1]


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("case", ["distinct", "ties", "nan"])
def test_topk_by_partition_equals_topk_by_sort(largest: int, case: str) -> None:
    generator = np.random.default_rng(1)
    x = generator.standard_normal((7, 200)).astype(np.float32)
    if case == "ties":
        x = np.round(x)
    if case == "nan":
        x[generator.random(x.shape) < 0.1] = np.nan
    k = np.array([9])
    values, indices = execute(present(lookup("TopK", 11)), 11, {"largest": largest}, [x, k], 2)
    key = np.where(np.isnan(x), np.inf, x)
    order = np.stack(
        [sorted(range(200), key=lambda j: (-row[j] if largest else row[j], j))[:9] for row in key]
    )
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1))


@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS, "bool"])
@pytest.mark.parametrize("target", sorted(set(NUMPY) - {"f8e8m0fnu"}))
def test_cast_between_all_types(source: str, target: str) -> None:
    x = np.array([0, 1], NUMPY[source])
    y = both("Cast", [x], 24, to=ONNX[target])
    if target == "str":
        assert [float({"True": 1, "False": 0}.get(text, text)) for text in y] == [0, 1]
    else:
        np.testing.assert_array_equal(y.astype(np.complex128), [0, 1])


@pytest.mark.parametrize("target", sorted(NUMPY))
def test_cast_of_a_scalar_gives_an_array(target: str) -> None:
    op = lookup("Cast", 24)
    assert op is not None
    for source in ("f32", "i64"):
        (y,) = execute(op, 24, {"to": ONNX[target]}, [np.array(1, NUMPY[source])])
        assert isinstance(y, np.ndarray)
        assert (y.shape, name_of(y.dtype)) == ((), target)


@pytest.mark.parametrize("dtype", ["f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz"])
def test_cast_to_float8_saturates_or_not(dtype: str) -> None:
    import ml_dtypes

    greatest = float(ml_dtypes.finfo(NUMPY[dtype]).max)
    for source in ("f32", "f64", "bf16"):
        x = np.array([np.inf, -np.inf, np.nan, 1e9, 1.0], NUMPY[source])
        y = both("Cast", [x], 24, to=ONNX[dtype]).astype(np.float64)
        np.testing.assert_array_equal(y, [greatest, -greatest, np.nan, greatest, 1])
        free = both("Cast", [x], 24, to=ONNX[dtype], saturate=0).astype(np.float64)
        lost = np.inf if dtype == "f8e5m2" else np.nan
        np.testing.assert_array_equal(free, [lost, -lost, np.nan, lost, 1])


@pytest.mark.parametrize(
    ("round_mode", "expected"), [("up", [1, 2, 2, 4]), ("down", [1, 1, 1, 2]), ("nearest", [1, 1, 2, 4])]
)
def test_cast_to_e8m0_rounds_to_powers_of_two(round_mode: str, expected: list[int]) -> None:
    x = np.array([1.0, 1.25, 1.5, 3.5], np.float32)
    y = both("Cast", [x], 24, to=ONNX["f8e8m0fnu"], round_mode=round_mode)
    np.testing.assert_array_equal(y.astype(np.float32), expected)
    special = np.array([0, np.inf, np.nan, 1e-45], np.float32)
    codes = both("Cast", [special], 24, to=ONNX["f8e8m0fnu"], round_mode=round_mode).view(np.uint8)
    assert codes.tolist() == [0, 254, 255, 0]
    free = both("Cast", [special], 24, to=ONNX["f8e8m0fnu"], round_mode=round_mode, saturate=0)
    assert free.view(np.uint8).tolist() == [255, 255, 255, 255]


def test_cast_of_a_string_that_is_not_a_number() -> None:
    with pytest.raises(RunError, match="'pear' is not a number"):
        both("Cast", [np.array(["pear"], object)], to=ONNX["f32"])


def test_comparisons_with_nan_are_false_and_strings_compare() -> None:
    x = np.array([np.nan, 1.0], np.float32)
    for name in ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"):
        assert not both(name, [x, x])[0]
    assert both("Equal", [np.array(["a", "b"], object), np.array("b", object)], 19).tolist() == [False, True]


def test_exclusive_running_sum_excludes_a_later_infinity() -> None:
    x = np.array([1.0, np.inf, 2.0], np.float32)
    np.testing.assert_array_equal(both("CumSum", [x, np.array(0)], exclusive=1), [0, 1, np.inf])


def test_bit_shifts_past_the_width() -> None:
    x, y = np.array([-8, 8, -8], np.int8), np.array([8, 8, 2], np.int8)
    np.testing.assert_array_equal(both("BitShift", [x, y], 28, direction="RIGHT"), [-1, 0, -2])
    np.testing.assert_array_equal(both("BitShift", [x, y], 28, direction="LEFT"), [0, 0, -32])
    u, v = np.array([200, 200], np.uint8), np.array([8, 1], np.uint8)
    np.testing.assert_array_equal(both("BitShift", [u, v], direction="RIGHT"), [0, 100])


def test_topk_beyond_the_axis_size() -> None:
    with pytest.raises(RunError, match="needs 5 elements, but the axis has 2"):
        execute(present(lookup("TopK", 11)), 11, {}, [np.zeros(2), np.array([5])], 2)


@pytest.mark.parametrize(
    ("name", "dtype"), [("Where", "f32"), ("Mod", "i64"), ("Div", "f32"), ("Erf", "f64")]
)
def test_scalars_give_arrays(name: str, dtype: str) -> None:
    x = np.array(3, NUMPY[dtype])
    inputs = {"Where": [np.array(True), x, x], "Erf": [x]}.get(name, [x, x])
    y = execute(present(lookup(name, 18)), 18, {}, inputs)[0]
    assert isinstance(y, np.ndarray)
    assert y.shape == ()


def test_split_sizes_must_add_up() -> None:
    with pytest.raises(GraphError, match="do not add up to 5"):
        execute(present(lookup("Split", 13)), 13, {}, [np.zeros(5), np.array([2, 2])], 2)
