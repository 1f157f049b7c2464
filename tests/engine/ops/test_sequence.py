"""Sequences and optionals in programs: values, types, inputs, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.ops import lookup
from nncdbg.errors import GraphError, UsageError
from nncdbg.textual_repr.parser import parse

X = np.arange(6, dtype=np.float32).reshape(3, 2)


def run(signature: str, *lines: str, result: str = "%y", **inputs: Any) -> Any:
    body = "\n".join(f"  {line}" for line in lines)
    program = parse(f"opset 21\n\ngraph @main({signature}) -> ({result}) {{\n{body}\n  return {result}\n}}\n")
    debugger = nncdbg.Debugger(program, inputs, allocator="debug")
    debugger.catch("uninitialized", "guard")
    stop = debugger.run()
    assert stop.reason == "end", stop.detail
    assert debugger.outputs is not None
    return next(iter(debugger.outputs.values()))


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("%y = SequenceAt(%s, -1)", X[2]),
        ("%y = SequenceLength(%s)", np.int64(3)),
        ("%t = SequenceErase(%s, 0)\n  %y = SequenceAt(%t, 0)", X[1]),
        ("%t = SequenceInsert(%s, %x, 3)\n  %y = SequenceAt(%t, 3)", X),
        ("%t = SequenceInsert(%s, %x, -3)\n  %y = SequenceAt(%t, 0)", X),
        ("%y = ConcatFromSequence(%s, axis=0, new_axis=1)", X),
        ("%o = Optional(%s)\n  %t = OptionalGetElement(%o)\n  %y = SequenceAt(%t, 1)", X[1]),
        ("%o = Optional(type=type(f32[2]))\n  %y = OptionalHasElement(%o)", np.bool_(False)),
    ],
)
def test_values(line: str, wanted: Any) -> None:
    got = run("%x: f32[3,2]", "%s = SplitToSequence(%x, axis=0, keepdims=0)", line, x=X)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("split", ["2", "[2, 1]"])
def test_split(split: str) -> None:
    got = run("%x: f32[3,2]", f"%y = SplitToSequence(%x, {split})", x=X)
    assert [part.tolist() for part in got] == [X[:2].tolist(), X[2:].tolist()]


def test_inputs_and_outputs() -> None:
    parts = [X, X[:1]]
    got = run("%s: seq(f32[?,2]), %o: opt(f32[2])", "%y = SequenceErase(%s, 0)", s=parts)
    assert len(got) == 1
    np.testing.assert_array_equal(got[0], X[:1])
    assert run("%o: opt(f32[2])", "%y = OptionalHasElement(%o)", o=X[0]).item() is True


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (X, "needs a list"),
        ([X.astype(np.float64)], "it needs f32"),
        ([X[:, :1]], "axis 1 must have size 2"),
        ([None], "NoneType"),
    ],
)
def test_incompatible_inputs_are_refused(given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run("%s: seq(f32[?,2])", "%y = SequenceLength(%s)", s=given)


def test_a_sequence_of_elements_with_unknown_shape_cannot_be_generated() -> None:
    with pytest.raises(UsageError, match="has elements of unknown shape"):
        run("%s: seq(f32[...])", "%y = SequenceLength(%s)")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%y = SequenceAt(%s, 3)", "index 3 is out of range for a sequence of length 3"),
        ("%y = SequenceInsert(%s, %x, 4)", "insert position 4"),
        ("%o = Optional(type=type(f32[2]))\n  %y = OptionalGetElement(%o)", "absent"),
    ],
)
def test_errors_during_the_run(line: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        run("%x: f32[3,2]", "%s = SplitToSequence(%x, axis=0)", line, x=X)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%y = Relu(%s)", "must be a tensor"),
        ("%y: f32[2] = SequenceErase(%s)", "is declared"),
        ("%b: bool[] = true\n  %y = SequenceInsert(%s, %b)", "cannot mix"),
    ],
)
def test_incompatible_types_are_refused(line: str, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        run("%x: f32[3,2]", "%s = SplitToSequence(%x, axis=0)", line, x=X)


def test_a_loop_collects_into_a_sequence() -> None:
    lines = [
        "%empty = SequenceEmpty()",
        "while (%s = %empty) count %i times 3 {",
        "  %row = Gather(%x, %i)",
        "  %s.1 = SequenceInsert(%s, %row)",
        "  next %s = %s.1",
        "} -> (%y = %s)",
    ]
    got = run("%x: f32[3,2]", *lines, x=X)
    assert [part.tolist() for part in got] == X.tolist()


def test_reference_ops_are_marked() -> None:
    found = lookup("MelWeightMatrix", 17)
    assert found is not None
    assert found.reference
    relu = lookup("Relu", 17)
    assert relu is not None
    assert not relu.reference
    assert lookup("NoSuchOp", 17) is None
    assert lookup("ai.onnx.preview.training.Gradient", 1) is None


def test_a_reference_op_has_type_inference() -> None:
    got = run(
        "%t: f32[2,2,3]", "%y: f32[2,4,5,2] = AffineGrid(%t, [2, 3, 4, 5])", t=np.zeros((2, 2, 3), np.float32)
    )
    assert got.shape == (2, 4, 5, 2)
    with pytest.raises(GraphError, match="the operands of .* are invalid"):
        run("%t: f32[2]", "%y = AffineGrid(%t, [2, 3, 4])", t=np.zeros(2, np.float32))
