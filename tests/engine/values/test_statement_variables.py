"""`$out` and `$in0` of the current statement, and convenience variables, at stops and in conditions."""

from __future__ import annotations

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.stopping.stops import LogMessage

TEXT = """#nncdbg 1
opset 18

graph @main(%x: f32[2,4], %k: i64[]) -> (%out: f32[2,4]) {
  %a: f32[2,4] = Relu(%x)
  %top: f32[2,2], %where: i64[2,2] = TopK(%a, [2])
  %used: i64[2,2] = Neg(%where)
  %c: f32[2,4] = Clip(%a, _, 2.0)
  while @again (%s: f32[2,4] = %c) count %i: i64[] times %k {
    %t: f32[2,4] = Mul(%s, 2.0)
    next %s = %t
  } -> (%r: f32[2,4] = %s)
  %out: f32[2,4] = @layer(%r)
  return %out
}

graph @layer(%v: f32[2,4]) -> (%w: f32[2,4]) {
  %w: f32[2,4] = Neg(%v)
  return %w
}
"""
X = np.array([[-1, 2, 3, 4], [0.5, -6, 7, 8]], np.float32)


@pytest.fixture(params=["debug", "arena"])
def debugger(request: pytest.FixtureRequest) -> nncdbg.Debugger:
    return nncdbg.Debugger(nncdbg.parse(TEXT), inputs={"x": X, "k": np.array(3)}, allocator=request.param)


def test_at_a_stop_in_refers_to_the_next_statement_and_out_to_the_last(debugger: nncdbg.Debugger) -> None:
    np.testing.assert_array_equal(debugger.evaluate("$out"), X)  # At its start, the inputs of a graph.
    assert debugger.evaluate("$out1") == 3
    debugger.step_over()
    np.testing.assert_array_equal(debugger.evaluate("$out"), np.maximum(X, 0))
    np.testing.assert_array_equal(debugger.evaluate("$in0"), debugger.evaluate("%a"))
    np.testing.assert_array_equal(debugger.evaluate("$in1"), [2])  # A literal has no name.
    debugger.step_over()
    np.testing.assert_array_equal(debugger.evaluate("$out1"), debugger.evaluate("%where"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("$out2", r"there is no \$out2: the statement has 1 result"),
        ("$in3", r"there is no \$in3: the statement has 3 operands"),
        ("$in1", r"\$in1 is an optional operand that is not given"),
        ("$oops", "there is no variable `\\$oops`"),
        ("$iter = 3", "`\\$iter` is defined by the debugger"),
        ("$in0 = 3", "`\\$in0` is defined by the debugger"),
    ],
)
def test_an_undefined_variable_is_an_error(debugger: nncdbg.Debugger, text: str, message: str) -> None:
    debugger.run_to(line=8)
    with pytest.raises(nncdbg.NncdbgError, match=message):
        debugger.evaluate(text)


def test_a_condition_on_out_is_evaluated_after_the_statement(debugger: nncdbg.Debugger) -> None:
    debugger.break_at(op="Mul", when='max($out) > 5 and $op == "Mul" and $line == 10')
    stop = debugger.run()
    assert (stop.reason, stop.line) == ("breakpoint", 10)
    assert debugger.evaluate("max(%t)") == debugger.evaluate("max($out)") == 8
    assert debugger.evaluate("max($in0)") == 4  # The operand of the statement of the stop.
    assert debugger.evaluate("$iter") == 1


def test_a_condition_on_operands_is_evaluated_before_the_statement(debugger: nncdbg.Debugger) -> None:
    found = debugger.break_at(op="Mul", when="max($in0) > 5")
    assert debugger.run().line == 10
    assert debugger.evaluate("$iter") == 2
    assert not found.note
    with pytest.raises(nncdbg.NotComputed):
        debugger.value("%t")


def test_a_watch_and_a_logpoint_read_the_statement(debugger: nncdbg.Debugger) -> None:
    messages: list[LogMessage] = []
    debugger.control.said = messages.append
    debugger.break_at(line=10, log="{$iter}: {max($in0)} to {max($out)}")
    debugger.watch_value("%s", when="max($out) > 5")
    stop = debugger.run()
    assert stop.reason == "data"
    assert debugger.evaluate("$iter") == 2
    assert [message.text for message in messages] == ["0: 2.0 to 4.0", "1: 4.0 to 8.0"]


def test_a_catch_reads_the_statement_of_the_finding() -> None:
    text = "graph @main(%x: f32[2]) -> (%y: f32[2]) {\n  %y: f32[2] = Log(%x)\n  return %y\n}\n"
    debugger = nncdbg.Debugger(
        nncdbg.parse("#nncdbg 1\n\n" + text), inputs={"x": np.array([-1, 1], np.float32)}
    )
    debugger.catch("nan", when="count(isnan($out)) == 1 and min($in0) < 0")
    assert debugger.run().reason == "exception"
    debugger.restart()
    debugger.uncatch()
    debugger.catch("nan", when="min($in0) > 0")
    assert debugger.run().reason == "end"


@pytest.mark.parametrize("place", [{"graph": "layer"}, {"op": "break"}, {"line": 11}])
def test_out_is_refused_where_no_result_is_computed(
    debugger: nncdbg.Debugger, place: dict[str, object]
) -> None:
    with pytest.raises(nncdbg.NncdbgError, match=r"no result is computed there|has no op break"):
        debugger.break_at(when="max($out) > 1", **place)  # type: ignore[arg-type]
    assert not debugger.breakpoints


def test_an_unknown_variable_in_a_condition_is_refused(debugger: nncdbg.Debugger) -> None:
    with pytest.raises(nncdbg.ExpressionError, match=r"there is no variable `\$limit`"):
        debugger.break_at(op="Mul", when="max($out) > $limit")
    debugger.evaluate("$limit = 5")
    debugger.break_at(op="Mul", when="max($out) > $limit")
    debugger.run()
    assert debugger.evaluate("$iter") == 1


def test_a_convenience_variable_keeps_its_value_across_steps_and_edits(debugger: nncdbg.Debugger) -> None:
    debugger.step_over()
    before = debugger.evaluate("$kept = %a")
    debugger.set_value("%a", 0)
    debugger.run()
    debugger.restart()
    np.testing.assert_array_equal(debugger.evaluate("$kept"), np.maximum(X, 0))
    np.testing.assert_array_equal(before, np.maximum(X, 0))
    assert debugger.evaluate("$n = len($kept) + 1") == 3
    assert debugger.evaluate("$n = $n * 2") == 6
    assert debugger.values.convenience["n"] == 6


def test_step_into_a_layer_shows_its_inputs_as_out(debugger: nncdbg.Debugger) -> None:
    debugger.break_at(graph="layer")
    debugger.run()
    np.testing.assert_array_equal(debugger.evaluate("$out"), debugger.evaluate("%v"))
    debugger.selected = 1
    np.testing.assert_array_equal(debugger.evaluate("$in0"), debugger.evaluate("%r"))
