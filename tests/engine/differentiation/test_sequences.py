"""Cotangents of sequences: sequences of the cotangents of their elements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nncdbg
from nncdbg.textual_repr.parser import parse
from tests.engine.differentiation.gradients import program_of, run
from tests.engine.differentiation.test_control_flow import INPUTS
from tests.laws import examples

X = np.array([0.3, -0.7, 1.2])


@st.composite
def changes(draw: st.DrawFn) -> tuple[list[str], list[int]]:
    """Statements that change the sequence ``%s0``, and the factors of ``%x`` in the last sequence."""
    factors, lines = [1, 2, 3], []
    for number in range(draw(st.integers(1, 6))):
        length = len(factors)
        inserts = length < 2 or draw(st.booleans())
        at = draw(st.none() | st.integers(-length, length if inserts else length - 1))
        operand = "" if at is None else f", {at}"
        if at is not None and draw(st.booleans()):
            lines.append(f"%p{number} = Sub({at + 7}, %seven)")
            operand = f", %p{number}"
        if inserts:
            factor = 10 + number
            factors.insert(length if at is None else at, factor)
            lines.append(f"%e{number} = Mul(%x, {factor}.0)")
            lines.append(f"%s{number + 1} = SequenceInsert(%s{number}, %e{number}{operand})")
        else:
            del factors[-1 if at is None else at]
            lines.append(f"%s{number + 1} = SequenceErase(%s{number}{operand})")
    lines.append(f"%last = Identity(%s{number + 1})")
    return lines, factors


@examples(40)
@given(changes(), st.data())
def test_the_cotangent_of_an_element_is_at_its_place(
    changed: tuple[list[str], list[int]], data: st.DataObject
) -> None:
    lines, factors = changed
    weights = [data.draw(st.integers(-5, 5), label="weight") for _ in factors]
    places = [place - data.draw(st.sampled_from([0, len(factors)])) for place in range(len(factors))]
    reads = "".join(
        f"  %r{i} = SequenceAt(%last, {place})\n  %w{i} = Mul(%r{i}, {weight}.0)\n"
        for i, (place, weight) in enumerate(zip(places, weights, strict=True))
    )
    terms = ", ".join(f"%w{i}" for i in range(len(factors)))
    text = f"""opset 21
graph @main(%x: f64[3]) -> (%loss) {{
  %size = Size(%x)
  %four: i64[] = 4
  %seven = Add(%size, %four)
  %two = Mul(%x, 2.0)
  %three = Mul(%x, 3.0)
  %s0 = SequenceConstruct(%x, %two, %three)
{"".join(f"  {line}{chr(10)}" for line in lines)}{reads}  %sum = Sum({terms})
  %loss = ReduceSum(%sum, keepdims=0)
  return %loss
}}
"""
    debugger = nncdbg.Debugger(parse(text), {"x": X})
    assert debugger.run().reason == "end"
    expected = sum(weight * factor for weight, factor in zip(weights, factors, strict=True))
    np.testing.assert_array_equal(debugger.evaluate("grad(%loss, %x)"), np.full(3, expected))


def test_the_gradient_by_a_sequence_is_a_sequence() -> None:
    lines = ["%s = SequenceConstruct(%x, %w, %x)", "%f = SequenceAt(%s, -2)", "%q = Mul(%f, %f)"]
    program = program_of([*lines, "%loss = ReduceSum(%q, keepdims=0)"], INPUTS)
    debugger = nncdbg.Debugger(program, INPUTS)
    assert debugger.run().reason == "end"
    found = debugger.evaluate("grad(%loss, %s)")
    np.testing.assert_array_equal(found, [np.zeros(3), 2 * INPUTS["w"], np.zeros(3)])


RESULT = """opset 21
graph @main(%x: f64[3]) -> (%d_x) {
  %parts, saved %s = @parts(%x)
  %one = SequenceAt(%parts, 0)
  %two = SequenceAt(%parts, 1)
  %d = SequenceConstruct(%two, %one)
  %d_x: f64[3] = @parts.backward(%d, %s)
  return %d_x
}
graph @parts(%x: f64[3]) -> (%parts: seq(f64[3])) {
  %q = Mul(%x, %x)
  %parts = SequenceConstruct(%x, %q)
  return %parts
}
backward @parts.backward of @parts by (%x)
"""


def test_a_graph_that_returns_a_sequence_takes_a_sequence_of_cotangents() -> None:
    got = run(parse(RESULT), {"x": X})
    np.testing.assert_allclose(got["d_x"], X * X + X * 2 * X, rtol=1e-15)


@pytest.mark.parametrize(("count", "cotangent"), [(1, "%two"), (3, "%two, %one, %one")])
def test_cotangents_of_different_lengths_are_not_added(count: int, cotangent: str) -> None:
    text = RESULT.replace("SequenceConstruct(%two, %one)", f"SequenceConstruct({cotangent})")
    for old, new in (
        ("  %parts = SequenceConstruct(", "  %p = SequenceConstruct("),
        ("  return %parts", "  %parts = Identity(%p)\n  return %parts, %p"),
        ("(%parts: seq(f64[3]))", "(%parts: seq(f64[3]), %p: seq(f64[3]))"),
        ("%parts, saved", "%parts, %p, saved"),
        ("@parts.backward(%d, %s)", "@parts.backward(%d, %parts, %s)"),
    ):
        text = text.replace(old, new)
    stop = nncdbg.Debugger(parse(text), {"x": X}).run()
    assert f"cannot add sequences of 2 and {count} elements" in str(stop.detail)
