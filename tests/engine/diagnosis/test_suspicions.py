"""Suspicious statements, and the causes of zeros."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nncdbg.engine.diagnosis.suspicions import suspicion
from nncdbg.engine.diagnosis.zeros import cause_of_zeros

SQUARE = np.arange(6, dtype=np.float32).reshape(2, 3)
COLUMN = np.arange(3, dtype=np.float32).reshape(3, 1)


def softmax(array: np.ndarray, axis: int) -> np.ndarray:
    powers = np.exp(array - array.max(axis=axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis=axis, keepdims=True))


@pytest.mark.parametrize(
    ("op", "attributes", "operands", "result", "words"),
    [
        ("Softmax", {"axis": 0}, [SQUARE], softmax(SQUARE, 0), "normalizes over axis 0 of 2, not the last"),
        ("LogSoftmax", {"axis": -2}, [SQUARE], np.log(softmax(SQUARE, 0)), "last axis are 0.1423 to 2.858"),
        ("Softmax", {"axis": 1}, [SQUARE], softmax(SQUARE, 1), ""),
        ("Softmax", {}, [SQUARE], softmax(SQUARE, -1), ""),
        ("Sub", {}, [COLUMN, COLUMN[:, 0]], COLUMN - COLUMN[:, 0], "[3, 1] and [3] give [3, 3]"),
        ("Sub", {}, [SQUARE, COLUMN[:, 0]], SQUARE - COLUMN[:, 0], ""),
        ("ReduceMean", {}, [SQUARE, np.array([0])], SQUARE.mean(0), "reduces over axis 0 only"),
        ("ReduceMean", {"axes": [-2]}, [SQUARE], SQUARE.mean(0), "reduces over axis 0 only"),
        ("ReduceMean", {}, [SQUARE, np.array([1])], SQUARE.mean(1), ""),
        (
            *("QuantizeLinear", {}, [SQUARE]),
            *(np.array([[-128, 127, 127], [0, 1, -128]], np.int8), "saturates: 67% of the elements"),
        ),
        ("QuantizeLinear", {}, [SQUARE], np.arange(6, dtype=np.int8), ""),
        ("Clip", {}, [SQUARE], np.full((2, 3), 9, np.float32), "gives 9 for all 6 elements"),
        ("Add", {}, [np.ones(6, np.float32)], np.full(6, 2, np.float32), ""),
        ("Shape", {}, [[SQUARE]], np.array([2, 3]), ""),
    ],
)
def test_suspicion(
    op: str, attributes: dict[str, Any], operands: list[Any], result: np.ndarray, words: str
) -> None:
    found = suspicion(op, attributes, operands, result)
    assert words in found
    assert bool(found) is bool(words)


@pytest.mark.parametrize(
    ("op", "operands", "name", "evidence"),
    [
        ("Mul", [np.full(2, 1e-4, np.float16)] * 2, "underflow", "f16 rounds results below about 3e-08 to 0"),
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
    cause = cause_of_zeros(op, names, operands, np.zeros(2, np.float16))
    assert cause.name == name
    assert evidence in cause.evidence
