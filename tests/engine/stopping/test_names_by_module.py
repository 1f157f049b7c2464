"""Conditions, messages and displays with `%.name`, which means a value below the module of its graph."""

from __future__ import annotations

from io import StringIO

import pytest

import nncdbg
from nncdbg.commands.session import CommandSession
from nncdbg.presentation.screen import Screen
from nncdbg.target.program import ProgramTarget

TEXT = """#nncdbg 1
opset 18

graph @main(%x: f32[2]) -> (%b.y: f32[2]) {
  %a.y = @a(%x) : f32[2]
  %b.y = @b(%a.y) : f32[2]
  return %b.y
}

graph @a(%x: f32[2]) -> (%.y: f32[2]) {
  %.h = Add(%x, 1.0) : f32[2]
  %.y = Relu(%.h) : f32[2]
  return %.y
}

graph @b(%a.y: f32[2]) -> (%.y: f32[2]) {
  %.h = Mul(%a.y,
      2.0) : f32[2]
  %.y = Relu(%.h) : f32[2]
  return %.y
}
"""


@pytest.fixture
def debugger() -> nncdbg.Debugger:
    return nncdbg.Debugger(nncdbg.parse(TEXT), {"x": [1.0, 2.0]})


def test_a_condition_reads_the_value_of_the_graph_of_its_line(debugger: nncdbg.Debugger) -> None:
    point = debugger.break_at(line=19, when="max(%.h) == 6")
    stop = debugger.run()
    assert (stop.reason, stop.line) == ("breakpoint", 19)
    assert point.condition is not None
    assert point.condition.text == "max(%b.h) == 6"


def test_a_condition_on_a_graph_reads_the_values_of_its_module(debugger: nncdbg.Debugger) -> None:
    point = debugger.break_at(graph="b", when="max(%.h) == 6")
    assert point.condition is not None
    assert point.condition.text == "max(%b.h) == 6"
    debugger.breakpoints.set_condition(point.number, "max(%a.y) == 3")
    stop = debugger.run()
    assert (stop.reason, stop.line) == ("breakpoint", 17)


def test_a_message_reads_the_value_of_the_graph_of_its_line(debugger: nncdbg.Debugger) -> None:
    point = debugger.break_at(line=12, log="h is {max(%.h)}")
    assert point.log == "h is {max(%a.h)}"
    assert debugger.run().reason == "end"
    assert debugger.control.messages == ["h is 3.0"]


def test_a_display_keeps_its_value_in_other_graphs(debugger: nncdbg.Debugger) -> None:
    out = StringIO()
    session = CommandSession(ProgramTarget(debugger), "b.nnc", Screen(out))
    for line in ("break 19", "continue", "display max(%.h)", "step"):
        session.execute(line)
    assert session.displays == {1: "max(%b.h)"}
    assert out.getvalue().count("1: max(%b.h) = 6.0") == 2
