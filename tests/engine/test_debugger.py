"""The debugger's commands, one behavior per test, on a small program with 1-based line numbers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import nncdbg
from tests.presence import present

TEXT = """\
graph @main(%x: f32[4], %flag: bool[]) -> (%y: f32[4]) {
  %n: i64[] = 5
  %z = Add(%x, 1.0)

  while @refine (%i: i64[] = 0, %s: f32[4] = %z) {
    %go = Less(%i, %n)
    break unless %go
    %s.1 = Mul(%s, 0.5)
    %i.1 = Add(%i, 1)
    next %i = %i.1, %s = %s.1
  } -> (%k = %s)
  if %flag @hot {
    %a = @layer(%k)
    yield %a
  } else @cold {
    yield %k
  } -> (%l)
  %y = Softmax(%l)
  return %y
}

graph @layer(%p: f32[4]) -> (%r: f32[4]) {
  %q = Relu(%p)
  %r = Sub(%q, %p)
  return %r
}
"""
X = np.array([1.0, -3.0, 0.5, 7.0], np.float32)


@pytest.fixture
def debugger() -> nncdbg.Debugger:
    return nncdbg.Debugger(nncdbg.parse(TEXT), {"x": X, "flag": True})


def reference(x: Any = X, flag: bool = True) -> Any:
    k = (np.asarray(x) + np.float32(1)) * np.float32(0.5**5)
    layer = np.maximum(k, 0) - k if flag else k
    exponents = np.exp(layer - layer.max())
    return exponents / exponents.sum()


def test_run_computes_the_outputs(debugger: nncdbg.Debugger) -> None:
    assert debugger.stop.reason == "entry"
    assert debugger.stop.line == 3
    assert debugger.run().reason == "end"
    assert debugger.outputs is not None
    np.testing.assert_allclose(debugger.outputs["y"], reference(), rtol=1e-6)


def test_step_over_executes_a_loop_or_branch_as_one_statement(debugger: nncdbg.Debugger) -> None:
    lines = []
    while debugger.stop.reason != "end":
        lines.append(debugger.stop.line)
        debugger.step_over()
    assert lines == [3, 5, 12, 18, 19]


def test_step_into_enters_loop_branch_and_call(debugger: nncdbg.Debugger) -> None:
    debugger.run_to(line=5)
    assert debugger.step_into().line == 6
    assert debugger.frames[0].iteration == 0
    assert debugger.value("i") == 0
    debugger.run_to(line=12)
    assert debugger.step_into().line == 13
    assert debugger.step_into().line == 23
    assert [frame.code.graph.name for frame in debugger.frames] == ["layer", "hot", "main"]
    assert debugger.step_out().line == 14
    assert debugger.step_out().line == 18


def test_step_into_an_op_shows_its_micro_program(debugger: nncdbg.Debugger) -> None:
    debugger.run_to(line=18)
    stop = debugger.step_into(micro=True)
    text = debugger.loaded.listing_of(debugger.frames[0].code)
    assert text is not debugger.loaded.listing
    assert stop.line is not None
    assert any("Exp(" in line for line in text.lines)
    stop = debugger.step_out()
    assert (stop.reason, stop.line) == ("step", 19)
    np.testing.assert_allclose(debugger.value("y"), reference(), rtol=1e-6)
    debugger.step_back()
    assert debugger.stop.line == 18


@pytest.mark.parametrize(
    ("place", "lines"),
    [
        ({"line": 8}, [8] * 5),
        ({"line": 8, "hits": 3}, [8]),
        ({"line": 8, "hits": ">=4"}, [8, 8]),
        ({"line": 8, "hits": "%2"}, [8, 8]),
        ({"line": 8, "when": "$iter == 3"}, [8]),
        ({"line": 8, "when": "max(%s) < 3"}, [8] * 3),
        ({"line": 8, "when": "max(%s.1) < 3"}, [8] * 4),
        ({"line": 8, "temporary": True}, [8]),
        ({"line": 4}, [5]),
        ({"line": 2}, []),
        ({"op": "Softmax"}, [18]),
        ({"op": "Relu"}, [23]),
        ({"graph": "layer"}, [23]),
        ({"graph": "refine"}, [6] * 6),
        ({"value": "q"}, [23]),
        ({"value": "%s.1", "when": "any(%s.1 < -0.2)", "hits": 1}, [8]),
    ],
)
def test_breakpoints_stop_where_they_are_set(
    debugger: nncdbg.Debugger, place: dict[str, Any], lines: list[int]
) -> None:
    breakpoint = debugger.break_at(**place)
    stops = []
    while (stop := debugger.run()).reason != "end":
        assert stop.reason == "breakpoint"
        assert stop.breakpoints == (breakpoint.number,)
        stops.append(stop.line)
    assert stops == lines


def test_a_breakpoint_on_a_line_without_a_statement_reports_the_line_it_moved_to(
    debugger: nncdbg.Debugger,
) -> None:
    assert debugger.break_at(line=4).note == "line 4 has no statement; moved to line 5"
    assert debugger.break_at(line=5).note == ""


def test_a_data_breakpoint_stops_after_each_write(debugger: nncdbg.Debugger) -> None:
    debugger.watch_value("%s")
    seen = []
    while (stop := debugger.run()).reason == "data":
        seen.append(float(debugger.value("s")[0]))
    assert seen == [2.0, 1.0, 0.5, 0.25, 0.125, 0.0625]
    debugger.delete()
    debugger.restart()
    debugger.watch_value("k", when="max(%k) < 100")
    stop = debugger.run()
    assert (stop.reason, stop.line) == ("data", 5)
    assert debugger.value("k").shape == (4,)


def test_a_condition_that_fails_at_run_time_stops_and_is_reported(debugger: nncdbg.Debugger) -> None:
    debugger.break_at(line=8, when="%s[9] > 0")
    stop = debugger.run()
    assert stop.reason == "breakpoint"
    assert "its condition failed" in stop.detail


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"line": 99}, "no statement at or after line 99"),
        ({"op": "Sofmax"}, "no op Sofmax"),
        ({"graph": "nowhere"}, "no graph @nowhere"),
        ({"value": "zz"}, "no value %zz"),
        ({"line": 8, "when": "max(%s"}, "expected `,` or `)`"),
        ({"line": 8, "when": "max(%unknown) > 1"}, "unknown"),
        ({"line": 8, "hits": "often"}, "hit count 'often'"),
        ({}, "a name, line, op, graph, value, node, source or site"),
    ],
)
def test_an_invalid_breakpoint_is_refused(
    debugger: nncdbg.Debugger, place: dict[str, Any], message: str
) -> None:
    with pytest.raises(nncdbg.UsageError, match=re.escape(message)):
        debugger.break_at(**place)
    assert debugger.breakpoints == []


def test_the_hint_for_an_unknown_op_suggests_the_nearest_name(debugger: nncdbg.Debugger) -> None:
    with pytest.raises(nncdbg.UsageError) as caught:
        debugger.break_at(op="Sofmax")
    assert caught.value.hint == "did you mean Softmax?"


def test_a_logpoint_prints_and_continues(debugger: nncdbg.Debugger) -> None:
    debugger.break_at(line=8, log="iteration {$iter}: max {max(%s)}", when="$iter < 2")
    assert debugger.run().reason == "end"
    assert debugger.control.messages == ["iteration 0: max 8.0", "iteration 1: max 4.0"]


def test_disabled_and_deleted_breakpoints_do_not_stop(debugger: nncdbg.Debugger) -> None:
    first, second = debugger.break_at(line=8), debugger.break_at(op="Softmax")
    debugger.breakpoints.enable(first.number, False)
    assert debugger.run().breakpoints == (second.number,)
    debugger.restart()
    debugger.delete(second.number)
    assert debugger.run().reason == "end"
    with pytest.raises(nncdbg.UsageError):
        debugger.delete(second.number)


def test_a_value_recall_interrupted_by_a_pause_is_none() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(TEXT), {"x": X, "flag": True}, allocator="arena")
    debugger.go_to(20)
    pc = debugger.control.machine.frames[-1].pc - 1
    assert debugger.timeline.recalled(pc) is not None
    debugger.pause()
    assert debugger.timeline.recalled(pc) is None


def test_reverse_continue_stops_at_the_same_hits_in_reverse_order(debugger: nncdbg.Debugger) -> None:
    debugger.break_at(line=8, when="mod($iter, 2) == 0")
    debugger.break_at(op="Relu")
    forward = []
    while (stop := debugger.run()).reason != "end":
        forward.append((stop.line, debugger.control.machine.tick))
    backward = []
    while (stop := debugger.reverse_continue()).reason != "entry":
        backward.append((stop.line, debugger.control.machine.tick))
    assert backward == forward[::-1]


def test_hit_counts_are_restored_by_going_back(debugger: nncdbg.Debugger) -> None:
    breakpoint = debugger.break_at(line=8, hits=3)
    debugger.run()
    assert (breakpoint.count, debugger.evaluate("$iter")) == (3, 2)
    debugger.restart()
    assert breakpoint.count == 0
    debugger.run()
    assert debugger.evaluate("$iter") == 2
    debugger.run()
    assert debugger.reverse_continue().line == 8
    assert debugger.evaluate("$iter") == 2


def test_stepping_back_at_the_start_is_an_error_and_changes_nothing(debugger: nncdbg.Debugger) -> None:
    for back in (
        debugger.step_back,
        debugger.step_back_into,
        debugger.reverse_continue,
        debugger.reverse_step_out,
    ):
        with pytest.raises(nncdbg.UsageError, match="start of the program"):
            back()
    assert debugger.stop.line == 3


def test_continuing_after_the_end_is_an_error(debugger: nncdbg.Debugger) -> None:
    debugger.run()
    for forward in (debugger.run, debugger.step_over, debugger.step_into, debugger.step_out):
        with pytest.raises(nncdbg.UsageError, match="has ended"):
            forward()
    assert debugger.step_back().line == 19


def test_values_exist_only_once_computed(debugger: nncdbg.Debugger) -> None:
    with pytest.raises(nncdbg.NotComputed, match="%z is not computed yet"):
        debugger.value("%z")
    with pytest.raises(nncdbg.ExpressionError) as caught:
        debugger.value("%zz")
    assert caught.value.hint == "did you mean %z?"
    debugger.step_over()
    np.testing.assert_array_equal(debugger.value("z"), X + 1)
    with pytest.raises(ValueError, match="read-only"):
        debugger.value("z")[0] = 5
    debugger.step_back()
    with pytest.raises(nncdbg.NotComputed):
        debugger.value("z")


def test_values_of_a_layer_that_was_stepped_over_are_readable(debugger: nncdbg.Debugger) -> None:
    debugger.run_to(line=18)
    k = (X + 1) * np.float32(0.5**5)
    np.testing.assert_array_equal(debugger.value("q"), np.maximum(k, 0))


def test_prev_is_the_value_of_the_previous_iteration(debugger: nncdbg.Debugger) -> None:
    debugger.break_at(line=9, when="$iter == 2")
    debugger.run()
    np.testing.assert_array_equal(debugger.evaluate("prev(%s.1) / %s.1"), [2, 2, 2, 2])
    debugger.restart()
    debugger.run_to(line=9)
    with pytest.raises(nncdbg.NotComputed):
        debugger.evaluate("prev(%s.1)")


def test_an_edit_updates_its_dependents(debugger: nncdbg.Debugger) -> None:
    debugger.run_to(line=12)
    branch = debugger.set_value("%z", 10.0, "3")
    changed = X.copy()
    changed[3] = 9.0
    np.testing.assert_array_equal(debugger.value("k"), (changed + 1) * np.float32(0.5**5))
    debugger.run()
    assert debugger.outputs is not None
    np.testing.assert_allclose(debugger.outputs["y"], reference(changed), rtol=1e-6)
    other = debugger.timeline.other(present(branch.parent), debugger.control.machine.tick)
    np.testing.assert_allclose(
        other.frames[0].slots[other.frames[0].code.slot_of["y"]], reference(), rtol=1e-6
    )


def test_an_edit_inside_a_loop_applies_from_the_current_iteration(debugger: nncdbg.Debugger) -> None:
    debugger.break_at(line=9, when="$iter == 2")
    debugger.run()
    debugger.set_value("s", 16.0)
    np.testing.assert_array_equal(debugger.value("s.1"), [8.0] * 4)
    debugger.delete()
    debugger.run_to(line=12)
    np.testing.assert_array_equal(debugger.value("k"), [16.0 * 0.5**3] * 4)


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (None, [1.0, 2.0], "the new value has shape"),
        ("9", 1.0, "cannot be set"),
        ("0:2", [1.0, 2.0, 3.0], "cannot be set"),
    ],
)
def test_an_invalid_edit_changes_nothing(
    debugger: nncdbg.Debugger, index: Any, value: Any, message: str
) -> None:
    debugger.step_over()
    with pytest.raises(nncdbg.UsageError, match=message):
        debugger.set_value("z", value, index)
    np.testing.assert_array_equal(debugger.value("z"), X + 1)
    assert list(debugger.timeline.branches) == [0]


def test_go_to_a_mark_restores_its_branch(debugger: nncdbg.Debugger) -> None:
    debugger.step_over()
    debugger.mark("before")
    debugger.set_value("z", 0.0)
    debugger.run()
    debugger.go_to("before")
    np.testing.assert_array_equal(debugger.value("z"), X + 1)
    with pytest.raises(nncdbg.UsageError, match="no mark 'nowhere'"):
        debugger.go_to("nowhere")
    debugger.timeline.forget_mark("before")
    with pytest.raises(nncdbg.UsageError, match="no mark 'before'"):
        debugger.timeline.forget_mark("before")


def test_a_pause_stops_within_one_statement(debugger: nncdbg.Debugger) -> None:
    seen = []

    def listener(event: Any) -> None:
        seen.append(event)
        if len(seen) == 4:
            debugger.pause()

    debugger.control.machine.listeners.append(listener)
    stop = debugger.run()
    assert stop.reason == "pause"
    assert len(seen) == 4
    assert debugger.run().reason == "end"


def test_a_failing_statement_can_be_run_again_after_an_edit() -> None:
    text = """\
graph @main(%x: f32[2,3], %shape: i64[2]) -> (%y) {
  %y = Reshape(%x, %shape)
  return %y
}
"""
    debugger = nncdbg.Debugger(nncdbg.parse(text), {"x": "ones", "shape": [4, 2]})
    stop = debugger.run()
    assert stop.reason == "exception"
    assert stop.line == 2
    assert isinstance(stop.error, nncdbg.NncdbgError)
    assert "%x: f32[2,3]" in str(stop.error)
    assert "^^^" in str(stop.error)
    debugger.set_value("shape", [3, 2])
    assert debugger.run().reason == "end"
    assert debugger.value("y").shape == (3, 2)


def test_a_program_with_an_unknown_op_runs_up_to_the_op() -> None:
    text = """\
graph @main(%x: f32[2]) -> (%y) {
  %a = Neg(%x)
  %y = other.Frobnicate(%a, size=3)
  return %y
}
"""
    debugger = nncdbg.Debugger(nncdbg.parse(text), {"x": "ones"})
    assert debugger.step_over().line == 3
    stop = debugger.step_over()
    assert stop.reason == "exception"
    assert isinstance(stop.error, nncdbg.UnsupportedOp)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("%y = Add(%x)", "Add takes 2 operands, not 1"),
        ("%y = Relu(%x, alpha=1)", "Relu has no attribute 'alpha'"),
        ("%y: f32[3] = Relu(%x)", "declared f32"),
        ("%y = MatMul(%x, %w)", "a has 4 columns, but b has 3 rows"),
        ("%y, %z = Relu(%x)", "Relu has 1 output"),
        ("%y = Cast(%x)", "Cast needs the attribute 'to'"),
    ],
)
def test_an_invalid_statement_is_refused_before_the_run(statement: str, message: str) -> None:
    text = f"graph @main(%x: f32[2,4], %w: f32[3,3]) -> (%y) {{\n  {statement}\n  return %y\n}}\n"
    with pytest.raises(nncdbg.GraphError) as caught:
        nncdbg.Debugger(nncdbg.parse(text), {})
    assert message in caught.value.message
    assert caught.value.excerpt is not None
    assert caught.value.excerpt.line == 2


def test_switching_between_branches_restores_their_state(debugger: nncdbg.Debugger) -> None:
    debugger.run_to(line=12)
    first = debugger.value("k").copy()
    debugger.set_value("k", 1.0)
    debugger.run()
    debugger.timeline.switch(0)
    np.testing.assert_array_equal(debugger.value("k"), first)
    debugger.step_back()
    debugger.timeline.switch(1)
    assert debugger.control.machine.ended
    np.testing.assert_array_equal(debugger.value("k"), [1.0] * 4)
    debugger.restart()
    debugger.run_to(line=12)
    np.testing.assert_array_equal(debugger.value("k"), [1.0] * 4)
    debugger.step_back()
    assert debugger.timeline.ahead
    debugger.timeline.switch(0)
    debugger.run()
    np.testing.assert_array_equal(debugger.value("k"), first)


def test_the_repr_of_a_stop_is_one_line(debugger: nncdbg.Debugger) -> None:
    assert repr(debugger.stop) == "Stop('entry', line=3, op='Add')"
    debugger.step_out()
    assert repr(debugger.stop) == "Stop('end', line=None, op=None)"
