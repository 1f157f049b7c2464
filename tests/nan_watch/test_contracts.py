"""Operands that the definition of an op does not allow are findings of the kind `contract`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.ops.contracts import CAUSES
from nncdbg.nan_watch.records import Report

Inputs = dict[str, Any]


def watched(statement: str, inputs: Inputs, opset: int = 22) -> Report:
    """Watch a program of one statement; the types of its inputs are those of the data."""
    data = {name: np.asarray(value) for name, value in inputs.items()}
    given = ", ".join(f"%{name}: {_type(value)}" for name, value in data.items())
    text = f"opset {opset}\ngraph @main({given}) -> (%y) {{\n  {statement}\n  return %y\n}}\n"
    return nncdbg.watch(nncdbg.parse(text), data)


def _type(value: Any) -> str:
    kinds = {"float32": "f32", "int64": "i64", "int32": "i32", "uint8": "u8", "bool": "bool", "int8": "i8"}
    return f"{kinds[str(value.dtype)]}[{','.join(map(str, value.shape))}]"


def f(*numbers: float) -> Any:
    return np.array(numbers, np.float32)


ZEROS, ONES = np.zeros((5, 3), "f4"), np.ones((5, 3), "f4")
LSTM = {
    "x": np.ones((3, 2, 1), "f4"),
    "w": np.ones((1, 4, 1), "f4"),
    "r": np.ones((1, 4, 1), "f4"),
}
NORM = {"x": np.ones((1, 2, 3), "f4"), "s": f(1, 1), "b": f(0, 0), "m": f(0, 0)}
QUANTIZED = {"x": np.array([1, 2], np.int32), "s": np.float32(0.5)}

BROKEN: list[tuple[str, str, Inputs, str]] = [
    (
        "duplicate index",
        "%y = ScatterND(%a, %i, %u)",
        {"a": ZEROS, "i": np.array([[0], [2], [2], [4], [4]], np.int64), "u": ONES},
        "%i at [1] and at [2] both write [2] of the result: 2 of 5 updates are lost "
        "(2 places are written more than once)",
    ),
    (
        "duplicate index",
        "%y = ScatterND(%a, %i, %u)",
        {"a": ZEROS, "i": np.array([[4], [-1]], np.int64), "u": ONES[:2]},
        "%i at [0] and at [1] both write [4] of the result: 1 of 2 updates are lost",
    ),
    (
        "duplicate index",
        "%y = ScatterElements(%a, %i, %u, axis=1)",
        {"a": ZEROS, "i": np.array([[0, 1, 1]], np.int64), "u": ONES[:1]},
        "%i at [0, 1] and at [0, 2] both write [0, 1] of the result: 1 of 3 updates are lost",
    ),
    (
        "duplicate axis",
        "%y = Slice(%x, %s, %e, %a)",
        {
            "x": ZEROS,
            "s": np.array([0, 1], np.int64),
            "e": np.array([2, 3], np.int64),
            "a": np.array([0, -2], np.int64),
        },
        "%a has the axes [0, -2]",
    ),
    (
        "duplicate axis",
        "%y = Pad(%x, %p, %v, %a)",
        {
            "x": ZEROS,
            "p": np.array([1, 0, 0, 0], np.int64),
            "v": np.float32(0),
            "a": np.array([1, 1], np.int64),
        },
        "%a has the axes [1, 1]",
    ),
    (
        "length out of range",
        "%y = LSTM(%x, %w, %r, _, %n, hidden_size=1)",
        {**LSTM, "n": np.array([3, 4], np.int32)},
        "%n[1] is 4, but a length must be in 0 to 3",
    ),
    (
        "length out of range",
        "%y = ReverseSequence(%x, %n, batch_axis=1, time_axis=0)",
        {"x": ZEROS, "n": np.array([1, 5, -1], np.int64)},
        "%n[2] is -1, but a length must be in 0 to 5",
    ),
    (
        "negative variance",
        "%y = BatchNormalization(%x, %s, %b, %m, %v)",
        {**NORM, "v": f(1, -1e-7)},
        "%v[1] is -1.0000000116860974e-07, but a variance must not be negative",
    ),
    (
        "probability out of range",
        "%y = Bernoulli(%x)",
        {"x": f(0.5, 1.5)},
        "%x[1] is 1.5, but a probability must be in 0 to 1",
    ),
    (
        "negative scale",
        "%y = QuantizeLinear(%x, %s)",
        {"x": f(1, 2), "s": np.float32(-0.5)},
        "%s is -0.5, but a scale must be positive",
    ),
    (
        "zero point of int32",
        "%y = DequantizeLinear(%x, %s, %z)",
        {**QUANTIZED, "z": np.int32(1)},
        "%z is 1, but the zero point of int32 must be 0",
    ),
    (
        "shift out of range",
        '%y = BitShift(%x, %n, direction="LEFT")',
        {"x": np.array([1, 1], np.uint8), "n": np.array([1, 8], np.uint8)},
        "%n[1] is 8, but a shift must be in 0 to 7",
    ),
]


@pytest.mark.parametrize(("cause", "statement", "inputs", "evidence"), BROKEN)
def test_a_broken_contract_trips(cause: str, statement: str, inputs: Inputs, evidence: str) -> None:
    report = watched(statement, inputs)
    (finding,) = report.findings
    assert (finding.kind, finding.cause, report.exit_code) == ("contract", cause, 1)
    assert finding.evidence.startswith(evidence)
    assert finding.hint
    assert {each.check: each.result for each in report.checks}["contract"] == "failed"


def test_every_contract_has_a_test_and_a_rule() -> None:
    assert {cause for cause, *_ in BROKEN} == CAUSES.keys()


@pytest.mark.parametrize(
    ("statement", "inputs"),
    [
        (
            '%y = ScatterND(%a, %i, %u, reduction="add")',
            {"a": ZEROS, "i": np.array([[2], [2]], np.int64), "u": ONES[:2]},
        ),
        ("%y = ScatterND(%a, %i, %u)", {"a": ZEROS, "i": np.array([[2], [1]], np.int64), "u": ONES[:2]}),
        (
            "%y = ScatterElements(%a, %i, %u)",
            {"a": ZEROS, "i": np.array([[0, 0, 1]], np.int64), "u": ONES[:1]},
        ),
        ("%y = LSTM(%x, %w, %r, _, %n, hidden_size=1)", {**LSTM, "n": np.array([3, 0], np.int32)}),
        ("%y = BatchNormalization(%x, %s, %b, %m, %v)", {**NORM, "v": f(1, 0)}),
        ("%y = DequantizeLinear(%x, %s, %z)", {**QUANTIZED, "z": np.int32(0)}),
        ("%y = Bernoulli(%x)", {"x": f(0, 1)}),
    ],
)
def test_operands_that_are_allowed_are_no_finding(statement: str, inputs: Inputs) -> None:
    report = watched(statement, inputs)
    assert (report.status, report.findings) == ("ok", [])


def test_a_contract_without_effect_on_an_output_does_not_trip() -> None:
    program = nncdbg.parse("""
opset 18
graph @main(%a: f32[4], %i: i64[2,1], %u: f32[2]) -> (%y) {
  %s = ScatterND(%a, %i, %u)
  %y = Slice(%s, [0], [2])
  return %y
}
""")
    report = nncdbg.watch(program, {"a": f(0, 0, 0, 0), "i": np.array([[3], [3]], np.int64), "u": f(1, 2)})
    assert (report.exit_code, report.findings[0].role) == (0, "masked")
    report = nncdbg.watch(program, {"a": f(0, 0, 0, 0), "i": np.array([[1], [1]], np.int64), "u": f(1, 2)})
    assert report.exit_code == 1


def test_catch_stops_at_a_broken_contract() -> None:
    program = nncdbg.parse("""
opset 18
graph @main(%a: f32[4], %i: i64[2,1], %u: f32[2]) -> (%y) {
  %y = ScatterND(%a, %i, %u)
  return %y
}
""")
    debugger = nncdbg.Debugger(
        program, {"a": f(0, 0, 0, 0), "i": np.array([[3], [3]], np.int64), "u": f(1, 2)}
    )
    debugger.catch("contract")
    stop = debugger.run()
    assert stop.reason == "exception"
    assert str(stop.detail).startswith("duplicate index: %i at [0] and at [1] both write [3] of the result")
