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
    head = f"opset {opset}\nopset com.microsoft 1\n"
    text = f"{head}graph @main({given}) -> (%y) {{\n  {statement}\n  return %y\n}}\n"
    return nncdbg.watch(nncdbg.parse(text), data)


def _type(value: Any) -> str:
    kinds = {"float32": "f32", "int64": "i64", "int32": "i32", "uint8": "u8", "bool": "bool", "int8": "i8"}
    return f"{kinds[str(value.dtype)]}[{','.join(map(str, value.shape))}]"


def f(*numbers: float) -> Any:
    return np.array(numbers, np.float32)


def i(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


ZEROS, ONES = np.zeros((5, 3), "f4"), np.ones((5, 3), "f4")
LSTM = {
    "x": np.ones((3, 2, 1), "f4"),
    "w": np.ones((1, 4, 1), "f4"),
    "r": np.ones((1, 4, 1), "f4"),
}
NORM = {"x": np.ones((1, 2, 3), "f4"), "s": f(1, 1), "b": f(0, 0), "m": f(0, 0)}
QUANTIZED = {"x": np.array([1, 2], np.int32), "s": np.float32(0.5)}

IMAGE = {"x": np.arange(16, dtype="f4").reshape(1, 1, 4, 4)}
U8 = {"a": np.ones((2, 2), "u1"), "s": np.float32(0.5), "z": np.uint8(0), "w": np.ones((1, 1, 1, 1), "u1")}
BOXES = {"b": f(0.5, 0.5, 1, 1, 0, 0, 1, 1).reshape(1, 2, 4), "p": f(0.9, 0.8).reshape(1, 1, 2)}
SOUND = {"n": np.array(4), "d": np.array(16), "r": np.array(8000), "h": np.float32(4000)}
WORDS = {
    "t": np.array([[0, 1]], np.int32),
    "k": np.array([[0, 0]], np.int32),
    "w": np.array([[1, 2], [3, 5]], "f4"),
    "g": f(1, 1),
}
LOSS = {"x": np.array([[0.1, 0.2, 0.7], [0.3, 0.3, 0.4]], "f4"), "t": i(0, 2)}
REGIONS = {**IMAGE, "r": f(0, 0, 2, 2).reshape(1, 4), "n": i(0)}
NEGATIVE = {"s": np.float32(-0.5)}


def scaled(call: str) -> tuple[str, str, Inputs, Inputs, str]:
    """The row of a statement that reads the scale %s."""
    return ("negative scale", f"%y = {call}", U8, NEGATIVE, "%s is -0.5, but a scale must be positive")


PAIRS: list[tuple[str, str, Inputs, Inputs, str]] = [
    (
        "overwritten update",
        "%y = MaxUnpool(%x, %i, kernel_shape=[2, 2], strides=[2, 2])",
        {"x": f(1, 2, 3, 4).reshape(1, 1, 2, 2), "i": i(0, 3, 8, 10).reshape(1, 1, 2, 2)},
        {"i": i(0, 0, 8, 10).reshape(1, 1, 2, 2)},
        "%i lets the updates [0, 0, 0, 0] and [0, 0, 0, 1] write element 0 of the result, 1.0 and 2.0",
    ),
    (
        "negative width or height",
        "%y = NonMaxSuppression(%b, %p, 2, 0.5, center_point_box=1)",
        BOXES,
        {"b": f(0.5, 0.5, -1, 1, 0, 0, 1, 1).reshape(1, 2, 4)},
        "%b[0, 0, 2] is -1.0, but a width or height must not be negative",
    ),
    *(
        (
            "class out of range",
            f"%y = {loss}(%x, %t{ignored})",
            LOSS,
            {"t": i(0, -1)},
            "%t[1] is -1, but a class must be 0 or more",
        )
        for loss in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
        for ignored in ("", ", ignore_index=2")
    ),
    (
        "negative index",
        "%y = RoiAlign(%x, %r, %n)",
        REGIONS,
        {"n": i(-1)},
        "%n[0] is -1, but an index must be 0 or more",
    ),
    (
        "corners in the wrong order",
        "%y = RoiAlign(%x, %r, %n)",
        REGIONS,
        {"r": f(3, 3, 4, 1).reshape(1, 4)},
        "%r[0, 3] is 1.0, but the second corner must not be before the first one",
    ),
    (
        "coordinate out of range",
        '%y = GridSample(%x, %g, padding_mode="border")',
        {**IMAGE, "g": f(0, 50).reshape(1, 1, 1, 2)},
        {"g": f(0, 1e30).reshape(1, 1, 1, 2)},
        "%g[0, 0, 0, 1] is 1.0000000150474662e+30, but coordinates beyond",
    ),
    (
        "condition too long",
        "%y = Compress(%x, %c, axis=0)",
        {"x": f(1, 2), "c": np.array([False, True])},
        {"c": np.array([False, True, True])},
        "%c has 3 elements, but the axis has 2: the last ones are ignored",
    ),
    (
        "edges in the wrong order",
        "%y = MelWeightMatrix(%n, %d, %r, %l, %h)",
        {**SOUND, "l": np.float32(100)},
        {"l": np.float32(4000)},
        "%l is 4000.0, but the lower edge must be below the upper edge, 4000.0",
    ),
    (
        "frame step out of range",
        "%y = STFT(%x, %n, _, 4)",
        {"x": np.ones((1, 8, 1), "f4"), "n": np.array(2)},
        {"n": np.array(0)},
        "%n is 0, but a frame step must be positive",
    ),
    (
        "zero to a negative power",
        "%y = Pow(%x, %n)",
        {"x": np.array([2, 0], np.int32), "n": np.array([-1, 0], np.int32)},
        {"n": np.array([1, -2], np.int32)},
        "%x[1] is 0, but the exponent is -2, which divides by the base",
    ),
    (
        "negative index",
        "%y, %m = com.microsoft.EmbedLayerNormalization(%t, %k, %w, %w, %w, %g, %g)",
        WORDS,
        {"t": np.array([[0, -1]], np.int32)},
        "%t[0, 1] is -1, but an index must be 0 or more",
    ),
    (
        "negative index",
        "%y = com.microsoft.RotaryEmbedding(%x, %t, %w, %w)",
        {"x": np.ones((1, 2, 4), "f4"), "t": i(0, 1).reshape(1, 2), "w": WORDS["w"]},
        {"t": i(0, -2).reshape(1, 2)},
        "%t[0, 1] is -2, but an index must be 0 or more",
    ),
    *map(
        scaled,
        (
            "QLinearConv(%w, 0.5, %z, %w, %s, %z, 0.5, %z)",
            "QLinearConv(%w, 0.5, %z, %w, 0.5, %z, %s, %z)",
            "com.microsoft.QLinearConv(%w, %s, %z, %w, 0.5, %z, 0.5, %z)",
            "QLinearMatMul(%a, 0.5, %z, %a, 0.5, %z, %s, %z)",
            "com.microsoft.QLinearAdd(%a, %s, %z, %a, 0.5, %z, 0.5, %z)",
            "com.microsoft.QLinearMul(%a, 0.5, %z, %a, %s, %z, 0.5, %z)",
            "com.microsoft.QLinearSigmoid(%a, %s, %z, 0.5, %z)",
            "com.microsoft.QLinearLeakyRelu(%a, 0.5, %z, %s, %z)",
            "com.microsoft.QLinearGlobalAveragePool(%w, %s, %z, 0.5, %z)",
            "com.microsoft.QLinearAveragePool(%w, %s, %z, 0.5, %z, kernel_shape=[1, 1])",
            "com.microsoft.QLinearConcat(0.5, %z, %a, 0.5, %z, %a, %s, %z, axis=0)",
            "com.microsoft.QGemm(%a, 0.5, %z, %a, 0.5, %z, _, %s, %z)",
            "com.microsoft.MatMulIntegerToFloat(%a, %a, 0.5, %s)",
            "com.microsoft.DynamicQuantizeMatMul([[1.0, 2.0]], %a, %s)",
            "com.microsoft.DequantizeLinear(%a, %s, %z)",
        ),
    ),
]
"""Cause, statement, operands that are allowed, those that replace some of them, and the evidence."""

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
    *((cause, statement, inputs | wrong, evidence) for cause, statement, inputs, wrong, evidence in PAIRS),
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


UPDATES = {"x": np.zeros((2, 3), "f4"), "i": i(1, 1, 2), "v": f(1, 2, 3)}


@pytest.mark.parametrize(
    "call",
    [
        "index_put.default(%x, _, %i, %v, n_indices=2)",
        "put.default(%x, %i, %v)",
        "index_copy.default(%x, %i, %w, dim=1)",
        "scatter.src(%x, %n, %w, dim=1)",
    ],
)
def test_updates_of_torch_that_overwrite_each_other_trip(call: str) -> None:
    pytest.importorskip("torch")
    data = {**UPDATES, "w": np.array([[1, 2, 3]] * 2, "f4"), "n": i(1, 1, 2, 0, 1, 1).reshape(2, 3)}
    text = f"""graph @main(%x: f32[2,3], %i: i64[3], %v: f32[3], %w: f32[2,3], %n: i64[2,3]) -> (%y) {{
  %y = aten.{call}
  return %y
}}
"""
    program = nncdbg.parse(text)
    (finding,) = nncdbg.watch(program, data, backend="torch").findings
    assert (finding.kind, finding.cause) == ("contract", "overwritten update")
    assert "1.0 and 2.0: the value that remains depends on the kernel" in finding.evidence
    for allowed in (
        {"v": f(5, 5, 5), "w": np.ones((2, 3), "f4")},
        {"i": i(0, 1, 2), "n": i(*[0, 1, 2] * 2).reshape(2, 3)},
    ):
        assert nncdbg.watch(program, data | allowed, backend="torch").findings == []


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
        (
            "%y = MaxUnpool(%x, %i, kernel_shape=[2, 2], strides=[1, 1])",  # the windows overlap
            {"x": f(4, 4, 4, 4).reshape(1, 1, 2, 2), "i": i(4, 4, 4, 4).reshape(1, 1, 2, 2)},
        ),
        ("%y = NegativeLogLikelihoodLoss(%x, %t, ignore_index=-1)", {**LOSS, "t": i(0, -1)}),
        *((statement, inputs) for _, statement, inputs, *_ in PAIRS),
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
