"""Breakpoints at source lines of the model and at single statements, logpoints, watches, assertions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.stopping.stops import LogMessage
from nncdbg.ir.search import same_file
from tests.presence import present

MODEL = """#nncdbg 1
opset 18

graph @main(%x: f32[2,4]) -> (%out: f32[2,4]) {
  %a: f32[2,4] = Relu(%x) loc("src/net.py":12)
  %p: f32[2,4] = Softmax(%a, axis=-1) loc("src/net.py":12)
  while @again (%s: f32[2,4] = %p) count %i: i64[] times 3 {
    %t: f32[2,4] = Neg(%s) loc("src/net.py":20)
    next %s = %t
  } -> (%out: f32[2,4] = %s)
  return %out
}
"""


@pytest.fixture
def debugger() -> nncdbg.Debugger:
    return nncdbg.Debugger(nncdbg.parse(MODEL))


def test_a_source_breakpoint_covers_every_statement_of_its_line(debugger: nncdbg.Debugger) -> None:
    found = debugger.break_at(source=("net.py", 12))
    assert found.lines == (5, 6)
    later = debugger.break_at(source=("/work/src/net.py", 13), hits=2)
    assert later.lines == (8,)
    assert later.note == "line 13 has no statement; moved to line 20"
    assert debugger.run().line == 6
    stop = debugger.run()
    assert (stop.line, stop.breakpoints) == (8, (later.number,))
    assert stop.frame is not None
    assert stop.frame.iteration == 1
    assert str(found) == "source net.py:12"


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("other.py", 1, "no statement comes from other.py"),
        ("net.py", 21, "no statement comes from net.py:21 or later"),
    ],
)
def test_source_lines_without_a_statement_are_refused(
    debugger: nncdbg.Debugger, file: str, line: int, message: str
) -> None:
    with pytest.raises(nncdbg.NncdbgError, match=message):
        debugger.break_at(source=(file, line))


@pytest.mark.parametrize(
    ("known", "requested", "same"),
    [
        ("net.py", "/a/net.py", True),
        ("src/net.py", "/a/src/net.py", True),
        ("src/net.py", "/a/net.py", False),
        ("/a/net.py", "net.py", True),
        ("/a/net.py", "/b/net.py", False),
        ("./net.py", "net.py", True),
        ("net.py", "/a/subnet.py", False),
    ],
)
def test_paths_of_the_same_file(known: str, requested: str, same: bool) -> None:
    assert same_file(known, requested) is same


def test_breakpoints_at_a_statement_of_a_block_and_of_a_micro_program(debugger: nncdbg.Debugger) -> None:
    found = debugger.break_at(site=(("main", 2, 0), 0), when="$iter == 2")
    assert found.lines == (8,)
    debugger.break_at(line=6)
    debugger.run()
    debugger.step_into(micro=True)
    code = debugger.frames[0].code
    assert code.formula is not None
    debugger.break_at(site=(code, 2))
    stop = debugger.run()
    assert stop.frame is not None
    assert (stop.frame.code, stop.frame.pc) == (code, 2)
    debugger.break_at(site=(debugger.loaded.listing_of(stop.frame.code), stop.line + 1 if stop.line else 0))
    stop = debugger.run()
    assert stop.frame is not None
    assert (stop.frame.code, stop.frame.pc) == (code, 3)
    stop = debugger.run()
    assert stop.breakpoints == (found.number,)
    with pytest.raises(nncdbg.NncdbgError, match="there is no statement 99 of @main"):
        debugger.break_at(site=(("main",), 99))


def test_a_group_of_breakpoints_takes_effect_together(debugger: nncdbg.Debugger) -> None:
    with debugger.breakpoints.traps.together():
        first = debugger.break_at(op="Softmax")
        debugger.break_at(op="Neg")
        debugger.delete(first.number)
    assert debugger.run().line == 8


def test_messages_of_logpoints_are_sent_during_the_run(debugger: nncdbg.Debugger) -> None:
    messages: list[tuple[LogMessage, int]] = []
    debugger.control.said = lambda message: messages.append((message, debugger.control.machine.tick))
    debugger.break_at(line=8, log="{$iter}: {$op} {$iter + 1}")
    debugger.break_at(value="t", when="any(%t == %t)", log="after")
    debugger.run()
    assert [message.text for message, _ in messages][:3] == ["0: Neg 1", "after", "1: Neg 2"]
    assert {message.line for message, _ in messages} == {8}
    assert [tick for _, tick in messages] == sorted({tick for _, tick in messages})
    assert debugger.control.messages == []


LOOP = """#nncdbg 1
graph @main(%x: f32[]) -> (%y: f32[]) {
  %h: f32[] = Add(%x, 1.0)
  while @grow (%s: f32[] = %h) count %i: i64[] times 3 {
    %t: f32[] = Mul(%s, 2.0)
    next %s = %t
  } -> (%y: f32[] = %s)
  return %y
}
"""


def grown(allocator: str = "debug") -> tuple[nncdbg.Debugger, list[str]]:
    debugger = nncdbg.Debugger(nncdbg.parse(LOOP), {"x": np.float32(1)}, allocator=allocator)
    said: list[str] = []
    debugger.control.said = lambda message: said.append(f"{message.line}: {message.text}")
    return debugger, said


@pytest.mark.parametrize("allocator", ["debug", "plain", "arena", "poison"])
@pytest.mark.parametrize(
    ("place", "log", "expected"),
    [
        ({"line": 3}, "h={%h}", ["3: h=2.0"]),
        ({"line": 5}, "{$iter}: {%t}", ["5: 0: 4.0", "5: 1: 8.0", "5: 2: 16.0"]),
        ({"op": "Mul"}, "t={%t}", ["5: t=4.0", "5: t=8.0", "5: t=16.0"]),
        ({"value": "t"}, "t={max(%t)}", ["5: t=4.0", "5: t=8.0", "5: t=16.0"]),
        ({"line": 4}, "y={%y}", ["4: y=16.0"]),
        ({"line": 5}, "{%s}", ["5: 2.0", "5: 4.0", "5: 8.0"]),
        # `run` skips a logpoint before the program's first statement, where the debugger already is.
        ({"line": 3}, "no values", []),
    ],
)
def test_a_logpoint_that_reads_the_result_of_its_line_is_printed_after_it(
    place: dict[str, Any], log: str, expected: list[str], allocator: str
) -> None:
    debugger, said = grown(allocator)
    found = debugger.break_at(**place, log=log)
    debugger.restart()
    assert debugger.run().reason == "end"
    assert said == expected
    assert ("evaluated after the statement" in found.note) == (log not in ("{%s}", "no values"))


@pytest.mark.parametrize("place", [{"line": 5}, {"op": "Mul"}, {"value": "t"}])
def test_a_condition_on_the_result_stops_after_the_statement_forward_and_backward(
    place: dict[str, Any],
) -> None:
    debugger, _ = grown()
    found = debugger.break_at(**place, when="%t > 5")
    assert found.note == "the condition reads the result, so it is evaluated after the statement"
    stop = debugger.run()
    assert (stop.line, stop.reason, debugger.evaluate("$iter")) == (5, "breakpoint", 1)
    assert debugger.value("%t") == 8
    assert stop.detail.endswith(": after the statement, as the condition reads its result")
    tick = debugger.control.machine.tick
    assert debugger.run().line == 5
    back = debugger.reverse_continue()
    assert (back.line, back.detail, debugger.control.machine.tick) == (5, stop.detail, tick)
    assert debugger.reverse_continue().reason == "entry"


def test_a_condition_on_operands_stops_before_the_statement() -> None:
    debugger, said = grown()
    debugger.break_at(line=5, when="%s > 3")
    debugger.break_at(line=5, log="{%t}")
    stop = debugger.run()
    assert (stop.line, debugger.evaluate("$iter")) == (5, 1)
    with pytest.raises(nncdbg.NncdbgError, match="not computed"):
        debugger.value("%t")
    assert "after" not in stop.detail
    assert said == ["5: 4.0"]
    debugger.step_over()
    assert said == ["5: 4.0", "5: 8.0"]


def test_condition_of_a_breakpoint_can_change_and_be_removed() -> None:
    debugger, _ = grown()
    found = debugger.break_at(op="Mul")
    debugger.breakpoints.set_condition(found.number, "$iter == 1")
    assert str(found) == "op Mul if $iter == 1"
    assert present(debugger.run().frame).iteration == 1
    debugger.breakpoints.set_condition(found.number, "%t > 0")
    assert found.note == "the condition reads the result, so it is evaluated after the statement"
    stop = debugger.run()
    assert (present(stop.frame).iteration, debugger.frames[0].pc) == (1, 1)
    debugger.breakpoints.set_condition(found.number, None)
    assert (found.condition, found.note) == (None, "")
    stop = debugger.run()
    assert (present(stop.frame).iteration, debugger.frames[0].pc) == (2, 0)
    with pytest.raises(nncdbg.NncdbgError, match="no breakpoint 9"):
        debugger.breakpoints.set_condition(9, "1 > 0")
    with pytest.raises(nncdbg.NncdbgError):
        debugger.breakpoints.set_condition(found.number, "nonsense(")
    assert found.condition is None


def test_ignored_hits_do_not_stop_but_count() -> None:
    debugger, _ = grown()
    found = debugger.break_at(op="Mul")
    debugger.breakpoints.ignore(found.number, 1)
    assert present(debugger.run().frame).iteration == 1
    assert found.count == 2
    debugger.breakpoints.ignore(found.number, 0)
    assert present(debugger.run().frame).iteration == 2


def test_breakpoint_reports_the_line_it_moved_to(debugger: nncdbg.Debugger) -> None:
    found = debugger.break_at(line=1)
    assert str(found) == f"line {found.lines[0]}"
    assert found.note == f"line 1 has no statement; moved to line {found.lines[0]}"


def test_watched_expression_stops_where_its_result_changes_forward_and_backward() -> None:
    debugger, _ = grown()
    found = debugger.breakpoints.add({"watch": "%s > 3"})
    stop = debugger.run()
    assert (stop.reason, present(stop.frame).iteration) == ("data", 1)
    assert stop.detail == "breakpoint 1, watch %s > 3: false -> true"
    assert debugger.run().reason == "end"
    assert debugger.reverse_continue().detail == "breakpoint 1, watch %s > 3: false -> true"
    debugger.restart()
    assert str(found.changes) == ""
    debugger.delete(found.number)
    debugger.breakpoints.add({"watch": "%t[...] // 8"}, when="$iter > 0")
    assert debugger.run().detail.endswith(": 1.")
    assert debugger.run().detail.endswith(": 1. -> 2.")


@pytest.mark.parametrize("text", ["%a[2, 0]", "%a[0, 0, 0]", "%x[-3, 0]", "%t[0, 4]"])
def test_watch_of_an_element_outside_of_the_value_is_refused(debugger: nncdbg.Debugger, text: str) -> None:
    with pytest.raises(nncdbg.UsageError) as caught:
        debugger.breakpoints.add({"watch": text})
    assert caught.value.message.startswith(f"{text} is not an element of f32[2,4]: ")
    assert debugger.breakpoints == []


@pytest.mark.parametrize("text", ["%a[1, 3]", "%a[-2]", "%a[0:9]", "%a[%i]", "%t[argmax(%t[0])]"])
def test_watch_of_an_element_inside_of_the_value_is_accepted(debugger: nncdbg.Debugger, text: str) -> None:
    assert debugger.breakpoints.add({"watch": text}).number == 1


def test_assertion_stops_after_the_statement_that_makes_it_false() -> None:
    debugger, _ = grown()
    debugger.breakpoints.add({"assert": "max(%t) < 7"})
    stop = debugger.run()
    assert (stop.reason, stop.line, debugger.evaluate("%t")) == ("data", 5, 8)
    assert debugger.run().line == 5
    assert debugger.run().reason == "end"


def test_assertion_on_out_covers_every_statement() -> None:
    debugger, _ = grown()
    debugger.breakpoints.add({"assert": "$out != 8"})
    stop = debugger.run()
    assert (stop.line, present(stop.frame).iteration) == (5, 1)
    debugger, _ = grown()
    debugger.breakpoints.add({"assert": "all(isfinite($out))"})
    assert debugger.run().reason == "end"


def test_watched_expressions_without_a_value_are_refused() -> None:
    debugger, _ = grown()
    for text in ("1 > 2", "$iter < 3"):
        with pytest.raises(nncdbg.NncdbgError, match="reads no value"):
            debugger.breakpoints.add({"assert": text})
    with pytest.raises(nncdbg.NncdbgError):
        debugger.breakpoints.add({"watch": "max(%nope)"})
    assert debugger.breakpoints == []


STEPS = """
state %w: f32[1] = [1.0]

graph @train() -> (%l: f32[1]) {
  %l: f32[1] = Add(%w, [0.5])
  update %w = %l
  return %l
}

run @train steps 4
"""


def test_condition_on_the_step_is_false_outside_a_run():
    debugger = nncdbg.Debugger(nncdbg.parse(STEPS))
    debugger.break_at(value="l", when="$step == 2")
    stops = []
    while (stop := debugger.run()).reason == "breakpoint":
        stops.append((debugger.evaluate("$step"), stop.detail))
    assert [step for step, _ in stops] == [2, 2]
    assert not any("failed" in detail for _, detail in stops)
