"""Regressions in stepping, editing and pausing, one test per fixed bug."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.compilation.code import Code
from nncdbg.engine.time.checkpoints import SPACING

LOOP = """\
graph @main(%x: f32[4], %n: i64[]) -> (%y: f32[4]) {
  %z = Softmax(%x)
  while @body (%s: f32[4] = %z) count %i: i64[] times %n {
    %half: f32[] = 0.5
    %a = Mul(%s, %half)
    %b = @layer(%a)
    next %s = %b
  } -> (%k = %s)
  %y = Softmax(%k)
  return %y
}

graph @layer(%p: f32[4]) -> (%r: f32[4]) {
  %q = Add(%p, 1.0)
  %r = Neg(%q)
  return %r
}
"""
X = np.array([1.0, -3.0, 0.5, 7.0], np.float32)


def started(text: str = LOOP, inputs: dict[str, Any] | None = None, **options: Any) -> nncdbg.Debugger:
    return nncdbg.Debugger(nncdbg.parse(text), inputs or {"x": X, "n": 3}, **options)


def test_a_replay_steps_into_the_same_micro_programs() -> None:
    debugger = started(history=0)
    debugger.step_into(micro=True)
    seen = []
    while not debugger.control.machine.ended:
        seen.append((debugger.stop.line, len(debugger.frames)))
        debugger.step_into()
    for place in reversed(seen):
        debugger.timeline.checkpoints.enforce()
        debugger.step_back_into()
        assert (debugger.stop.line, len(debugger.frames)) == place
    assert debugger.control.machine.tick == 1


def test_an_edit_just_inside_a_micro_program_survives_a_replay() -> None:
    debugger = started(history=0)
    debugger.step_into(micro=True)
    debugger.set_value("x", 0.0)
    debugger.step_out()
    np.testing.assert_allclose(debugger.value("z"), [0.25] * 4)
    debugger.step_back_into()
    debugger.step_into()
    np.testing.assert_allclose(debugger.value("z"), [0.25] * 4)


def test_a_mark_after_a_micro_program_is_valid_after_stepping_back_over_it() -> None:
    debugger = started()
    debugger.step_into(micro=True)
    debugger.step_out()
    made = debugger.mark("after")
    debugger.step_back()
    debugger.step_over()
    assert debugger.control.machine.tick < made.tick
    debugger.go_to("after")
    assert (debugger.control.machine.tick, debugger.stop.line) == (made.tick, 3)


def test_a_mark_after_an_edit_is_valid_after_going_back_before_the_edit() -> None:
    debugger = started()
    debugger.step_over()
    debugger.set_value("z", 8.0)
    debugger.mark("edited")
    debugger.restart()
    with pytest.raises(nncdbg.NotComputed):
        debugger.value("z")
    debugger.go_to("edited")
    np.testing.assert_array_equal(debugger.value("z"), [8.0] * 4)


def test_a_dropped_value_of_a_layer_is_recomputed_for_the_current_call() -> None:
    reference, without_history = started(), started()
    for debugger in (reference, without_history):
        debugger.break_at(line=15, when="$iter == 2", hits=1)
        debugger.break_at(graph="layer", hits=3)
        debugger.run()
        debugger.step_over()
        debugger.step_over()
    without_history.timeline.checkpoints.budget = 0
    without_history.timeline.checkpoints.enforce()
    np.testing.assert_array_equal(without_history.value("q"), reference.value("q"))


def test_a_dropped_value_that_was_edited_is_restored_as_edited() -> None:
    debugger = started()
    debugger.run()
    debugger.set_value("z", 3.0)
    debugger.timeline.checkpoints.budget = 0
    debugger.timeline.checkpoints.enforce()
    np.testing.assert_array_equal(debugger.value("z"), [3.0] * 4)


def test_an_edit_updates_dependents_through_dropped_values() -> None:
    debugger = started()
    debugger.run()
    debugger.timeline.checkpoints.budget = 0
    debugger.timeline.checkpoints.enforce()
    debugger.set_value("x", 0.0)
    assert debugger.outputs is not None
    np.testing.assert_allclose(debugger.outputs["y"], [0.25] * 4)


def test_distances_between_checkpoints_double() -> None:
    debugger = started(inputs={"x": X, "n": 6_000}, allocator="plain")
    debugger.run()
    last = debugger.control.machine.tick
    ticks = [state.tick for state in debugger.timeline.checkpoints.states]
    for older, newer in zip(ticks, ticks[1:], strict=False):
        assert newer - older <= max(2 * SPACING, last - newer + 2 * SPACING)
    assert len(ticks) < 20


def test_reverse_continue_over_a_long_loop_replays_few_statements() -> None:
    debugger = started(inputs={"x": X, "n": 6_000}, allocator="plain")
    debugger.run()
    last, _ = debugger.control.machine.tick, debugger.break_at(line=2)
    assert debugger.reverse_continue().reason == "breakpoint"
    assert debugger.control.machine.tick == 0
    assert debugger.timeline.replayed < 4 * last


def test_a_constant_set_in_a_loop_is_set_in_later_iterations() -> None:
    debugger = started()
    debugger.run_to(line=5)
    debugger.set_value("half", 0.0)
    debugger.run()
    np.testing.assert_array_equal(debugger.value("k"), [-1.0] * 4)


@pytest.mark.parametrize(
    ("element", "value"),
    [
        ("i8", 300),
        ("u8", -1),
        ("i64", 2**70),
        ("i32", 1.5),
        ("i64", float("nan")),
        ("bool", 2),
        ("f16", 1e6),
        ("f32", 1e300),
        ("f32", 1j),
        ("f32", "one"),
        ("f32", [[1.0], [2.0, 3.0]]),
        ("str", 5),
    ],
)
def test_a_value_that_the_type_cannot_hold_is_refused(element: str, value: Any) -> None:
    text = f"graph @main(%x: {element}[2]) -> (%x: {element}[2]) {{\n  return %x\n}}\n"
    debugger = started(text, {"x": "zeros"})
    before = debugger.value("x").tolist()
    with pytest.raises(nncdbg.UsageError):
        debugger.set_value("x", value)
    assert debugger.value("x").tolist() == before


@pytest.mark.parametrize(
    ("element", "value", "after"),
    [
        ("i8", -128, [-128, 0]),
        ("i32", 2.0, [2, 0]),
        ("bool", True, [True, False]),
        ("f16", float("inf"), [float("inf"), 0.0]),
        ("bf16", 1.001, [1.0, 0.0]),
        ("str", "word", ["word", ""]),
    ],
)
def test_one_element_of_any_type_can_be_set(element: str, value: Any, after: list[Any]) -> None:
    text = f"graph @main(%x: {element}[2]) -> (%x: {element}[2]) {{\n  return %x\n}}\n"
    debugger = started(text, {"x": "zeros"})
    debugger.set_value("x", value, 0)
    assert debugger.value("x").tolist() == after


def test_a_breakpoint_where_a_finding_stops_is_reported_and_counted() -> None:
    debugger = started(inputs={"x": X * np.float32(np.nan), "n": 0})
    text = "graph @main(%x: f32[2]) -> (%b) {\n  %a = Log(%x)\n  %b = Neg(%a)\n  return %b\n}\n"
    debugger = started(text, {"x": [-1.0, 1.0]})
    debugger.catch("nan")
    found = debugger.break_at(line=3)
    stop = debugger.run()
    assert (stop.reason, stop.line, stop.breakpoints, found.count) == ("exception", 2, (found.number,), 1)
    assert debugger.run().reason == "end"


def test_a_listener_that_raises_is_reported_and_detached() -> None:
    debugger = started()
    events = []

    def listener(event: object) -> None:
        events.append(event)
        raise RuntimeError("not today")

    debugger.control.machine.listeners.append(listener)
    assert debugger.run().reason == "end"
    assert len(events) == 1
    assert len(debugger.control.machine.problems) == 1
    assert "not today" in debugger.control.machine.problems[0]


def test_blocks_nested_deeper_than_the_python_stack_run() -> None:
    depth = 900
    lines = ["if %f {"] * depth + ["yield %x"]
    for level in range(depth):
        ending = f"yield %r{level}" if level < depth - 1 else f"return %r{level}"
        lines += ["} else {", "yield %x", f"}} -> (%r{level})", ending]
    text = "graph @main(%x: f32[2], %f: bool[]) -> (%r899) {\n" + "\n".join(lines) + "\n}\n"
    debugger = started(text, {"x": "ones", "f": True})
    assert debugger.run().reason == "end"
    assert debugger.outputs is not None
    np.testing.assert_array_equal(debugger.outputs["r899"], [1.0, 1.0])


def test_infinite_recursion_is_a_run_error() -> None:
    text = "graph @main(%x) -> (%y) {\n  %y = @f(%x)\n  return %y\n}\n"
    text += "graph @f(%p) -> (%q) {\n  %q = @f(%p)\n  return %q\n}\n"
    debugger = started(text.replace("%x)", "%x: f32[2])", 1), {"x": "ones"})
    stop = debugger.run()
    assert stop.reason == "exception"
    assert isinstance(stop.error, nncdbg.RunError)
    assert "blocks and calls are nested" in stop.error.message


def test_a_literal_out_of_range_is_a_graph_error() -> None:
    text = "graph @main(%x: u8[2]) -> (%y) {\n  %y = Add(%x, 300)\n  return %y\n}\n"
    with pytest.raises(nncdbg.GraphError, match="not a valid u8"):
        started(text, {"x": "zeros"})


def test_a_late_interruption_leaves_no_traps(monkeypatch: pytest.MonkeyPatch) -> None:
    debugger = started()
    debugger.run_to(line=5)
    code = debugger.frames[0].code
    # The state left by a thread that is delayed until after the flag was set, read and cleared.
    code.patched[:] = [_trap()] * len(code.patched)
    arms = []
    original = Code.arm

    def arm(self: Code) -> Any:
        arms.append(self)
        return original(self)

    monkeypatch.setattr(Code, "arm", arm)
    assert debugger.run().reason == "end"
    assert code in arms
    assert _trap() not in code.patched


def _trap() -> Any:
    from nncdbg.engine.compilation.code import TRAP

    return TRAP


def test_pauses_from_threads_change_neither_breakpoints_nor_results() -> None:
    whole = started(inputs={"x": X, "n": 400})
    whole.run()
    debugger = started(inputs={"x": X, "n": 400})
    found = debugger.break_at(line=5, when="mod($iter, 100) == 7")
    finished = threading.Event()

    def pauser() -> None:
        while not finished.wait(0.0007):
            debugger.pause()

    threads = [threading.Thread(target=pauser) for _ in range(2)]
    for thread in threads:
        thread.start()
    iterations = []
    deadline = time.monotonic() + 60
    try:
        while not debugger.control.machine.ended and time.monotonic() < deadline:
            if found.number in debugger.run().breakpoints:
                iterations.append(debugger.evaluate("$iter"))
    finally:
        finished.set()
        for thread in threads:
            thread.join()
    assert iterations == [7, 107, 207, 307]
    assert debugger.control.machine.tick == whole.control.machine.tick
    np.testing.assert_array_equal(debugger.value("y"), whole.value("y"))


def test_going_back_can_be_paused() -> None:
    debugger = started(inputs={"x": X, "n": 3_000}, allocator="plain")
    debugger.run()
    debugger.break_at(line=2, when="false")
    debugger.pause()
    stop = debugger.reverse_continue()
    assert stop.reason == "pause"
    assert debugger.control.machine.tick > 0
    assert debugger.reverse_continue().reason == "entry"


def test_values_of_a_layer_computed_before_an_edit_are_not_shown() -> None:
    debugger = started()
    debugger.run()
    assert debugger.value("q").shape == (4,)
    debugger.set_value("x", 0.0)
    with pytest.raises(nncdbg.NotComputed, match="is not available in this frame"):
        debugger.value("q")
    debugger.step_back()
    assert debugger.value("q").shape == (4,)
    debugger.timeline.switch(0)
    assert debugger.value("q").shape == (4,)


def test_reverse_continue_finds_a_nan_in_a_dropped_value() -> None:
    text = "graph @main(%x: f32[2]) -> (%b) {\n  %a = Log(%x)\n  %b = Neg(%x)\n  return %b\n}\n"
    debugger = started(text, {"x": [-1.0, 1.0]})
    debugger.run()
    debugger.timeline.checkpoints.budget = 0
    debugger.timeline.checkpoints.enforce()
    debugger.timeline.checkpoints.budget = 1 << 30
    debugger.catch("nan")
    assert debugger.reverse_continue().reason == "exception"
    assert debugger.control.machine.tick == 1


def test_a_literal_operand_does_not_have_the_type_of_an_unnamed_counter() -> None:
    text = """graph @main(%x: f32[3]) -> (%y) {
      while (%s: f32[3] = %x) times 2 {
        %a, %b = Split(%s, [1,2], axis=0)
        %t = Concat(%b, %a, axis=0)
        next %s = %t
      } -> (%y = %s)
      return %y
    }"""
    debugger = started(text, {"x": [1.0, 2.0, 3.0]})
    assert debugger.run().reason == "end"
    assert debugger.value("y").tolist() == [3.0, 1.0, 2.0]
