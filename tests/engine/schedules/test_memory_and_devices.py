"""A value is freed once, and the operands of a statement are on one device."""

import pytest

from nncdbg.engine.schedules.validation import validate
from nncdbg.ir.records import Program
from nncdbg.presentation.schedules import ScheduleWording


def causes(streams: str, body: str) -> list[str]:
    """Return the cause of each problem of a graph with the input %x."""
    text = f"{streams}\ngraph @main(%x: f32[4]) -> (%y: f32[4]) {{\n{body}\n}}\n"
    program = Program.parse(text)
    wording = ScheduleWording(program)
    return [wording.explanation(each).cause for each in validate(program).problems]


TWO = 'stream s0 "cuda:0"\nstream s1 "cuda:1"'


@pytest.mark.parametrize(
    ("frees", "found"),
    [
        (("free %a", "free %a %b"), ["double free"]),
        (("free %a", "free %b"), []),
        (("", "free %a %a"), ["double free"]),
    ],
)
def test_a_value_is_freed_once(frees: tuple[str, str], found: list[str]) -> None:
    body = f"""  %a = Relu(%x) | s0
  %b = Neg(%a) | s0 {frees[0]}
  %c = Abs(%b) | s0 {frees[1]}
  %y = Neg(%c) | s0 record e1
  return %y | host wait e1"""
    assert causes("", body) == found


def test_a_loop_frees_the_value_of_each_iteration() -> None:
    body = """  while @loop (%c: f32[4] = %x) count %i: i64[] times 3 {
    %a = Relu(%c) | s0
    %d = Neg(%a) | s0 free FREED
    next %c = %d
  } -> (%y = %c)
  return %y"""
    assert causes("", body.replace("FREED", "%a")) == []
    assert causes("", body.replace("FREED", "%x")) == ["double free"]


@pytest.mark.parametrize(
    ("copy", "operand", "found"),
    [
        ("%k = Identity(%x) | s0", "%b", ["operands of two devices"]),
        ("%k = Identity(%b) | s0 wait e2", "%k", []),
    ],
)
def test_operands_are_on_one_device(copy: str, operand: str, found: list[str]) -> None:
    body = f"""  %a = Relu(%x) | s0
  %b = Neg(%x) | s1 record e2
  {copy}
  %y = Add(%a, {operand}) | s0 wait e2 record e3
  return %y | host wait e3"""
    assert causes(TWO, body) == found


def test_a_stream_without_a_device_says_nothing_about_operands() -> None:
    body = """  %a = Relu(%x) | s0
  %b = Neg(%x) | s1 record e2
  %y = Add(%a, %b) | s0 wait e2 record e3
  return %y | host wait e3"""
    assert causes('stream s1 "cuda:1"', body) == []
