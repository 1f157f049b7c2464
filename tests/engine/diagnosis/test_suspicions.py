"""Suspicious statements, and the causes of zeros."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nncdbg.engine.diagnosis.diagnosing import misaligned, reduced_axes, suspicion
from nncdbg.engine.diagnosis.explaining import cause_of_zeros
from nncdbg.engine.ops import Op, lookup
from nncdbg.engine.ops.schema import newest_opset

SQUARE = np.arange(6, dtype=np.float32).reshape(2, 3)
COLUMN = np.arange(3, dtype=np.float32).reshape(3, 1)


def op_of(name: str) -> Op:
    found = lookup(name, newest_opset())
    assert found is not None
    return found


def softmax(array: np.ndarray, axis: int) -> np.ndarray:
    powers = np.exp(array - array.max(axis=axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis=axis, keepdims=True))


@pytest.mark.parametrize(
    ("op", "attributes", "operands", "result", "message"),
    [
        ("Softmax", {"axis": 0}, [SQUARE], softmax(SQUARE, 0), "normalizes over axis 0 of 2, not the last"),
        ("LogSoftmax", {"axis": -2}, [SQUARE], np.log(softmax(SQUARE, 0)), "last axis are 0.1423 to 2.858"),
        ("Softmax", {"axis": 1}, [SQUARE], softmax(SQUARE, 1), ""),
        ("Softmax", {}, [SQUARE], softmax(SQUARE, -1), ""),
        ("Sub", {}, [COLUMN, COLUMN[:, 0]], COLUMN - COLUMN[:, 0], "[3, 1] and [3] become [3, 3]"),
        ("Sub", {}, [SQUARE, COLUMN[:, 0]], SQUARE - COLUMN[:, 0], ""),
        ("ReduceMean", {}, [SQUARE, np.array([0])], SQUARE.mean(0), "reduces over axis 0 only"),
        ("ReduceMean", {"axes": [-2]}, [SQUARE], SQUARE.mean(0), "reduces over axis 0 only"),
        ("ReduceMean", {}, [SQUARE, np.array([1])], SQUARE.mean(1), ""),
        (
            *("QuantizeLinear", {}, [SQUARE]),
            *(np.array([[-128, 127, 127], [0, 1, -128]], np.int8), "saturates: 67% of the elements"),
        ),
        ("QuantizeLinear", {}, [SQUARE], np.arange(6, dtype=np.int8), ""),
        ("Clip", {}, [SQUARE], np.full((2, 3), 9, np.float32), "returns 9 for all 6 elements"),
        ("Add", {}, [np.ones(6, np.float32)], np.full(6, 2, np.float32), ""),
        ("Shape", {}, [[SQUARE]], np.array([2, 3]), ""),
    ],
)
def test_suspicion(
    op: str, attributes: dict[str, Any], operands: list[Any], result: np.ndarray, message: str
) -> None:
    found = suspicion(op_of(op), attributes, operands, result)
    assert message in found
    assert bool(found) is bool(message)


@pytest.mark.parametrize(
    ("op", "operands", "name", "evidence"),
    [
        ("Mul", [np.full(2, 1e-4, np.float16)] * 2, "underflow", "f16 rounds results below about 3e-08 to 0"),
        ("Exp", [np.full(2, -30, np.float16)], "underflow", "%a is -30 to -30; f16 rounds results below"),
        ("Cast", [np.full(2, 1e-9, np.float32)], "underflow", "|%a| is 1e-09 to 1e-09"),
        (
            "Div",
            [np.ones(2, np.float16), np.full(2, np.inf, np.float16)],
            "division by infinity",
            "%b has Inf",
        ),
        ("Relu", [np.array([-3, -2], np.float16)], "no positive input", "the largest element of %a is -2"),
        ("Sub", [np.ones(2, np.float16)] * 2, "unknown", "the operands are not all 0"),
    ],
)
def test_cause_of_zeros(op: str, operands: list[np.ndarray], name: str, evidence: str) -> None:
    names = ["a", "b"][: len(operands)]
    cause = cause_of_zeros(op_of(op), names, operands, np.zeros(2, np.float16))
    assert cause.name == name
    assert evidence in cause.evidence


@pytest.mark.parametrize(
    ("axes", "order", "wrong"), [([1], 1, True), ([-1], -1, True), ([0], 1, False), ([0, 1], 1, False)]
)
def test_misaligned_reports_a_reduced_operand_on_a_wrong_axis(
    axes: list[int], order: int, wrong: bool
) -> None:
    data = np.arange(9, dtype=np.float32).reshape(3, 3)
    operands = [data, data.mean(tuple(axes))][::order]
    reductions = [None, (data, axes)][::order]
    assert ("broadcasts along the wrong axis" in misaligned(op_of("Sub"), operands, reductions)) is wrong
    assert misaligned(op_of("MatMul"), operands, reductions) == ""


def test_reduced_axes_are_those_of_reductions_without_keepdims() -> None:
    assert reduced_axes(op_of("ReduceMean"), {"keepdims": 0}, [SQUARE, np.array([1])]) == [1]
    assert reduced_axes(op_of("ReduceMean"), {"keepdims": 1}, [SQUARE, np.array([1])]) == ()
    assert reduced_axes(op_of("Add"), {}, [SQUARE, np.array([1])]) == ()
