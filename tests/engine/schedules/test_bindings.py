"""A17: a schedule names the logical stream of a plan and the stream that it was bound to, as `s3->4`."""

from __future__ import annotations

from pathlib import Path

import pytest

from nncdbg.engine.schedules.player import played
from nncdbg.engine.schedules.scheduler import with_schedule
from nncdbg.engine.schedules.validation import bound, validate
from nncdbg.errors import ParseError, UsageError
from nncdbg.ir.records import Placement, Program
from nncdbg.opening.schedule_file import read_schedule, schedule_text
from nncdbg.presentation.schedules import ScheduleWording
from tests.engine.schedules.random_schedules import layered

HEAD = "#nncdbg 1\nopset 18\n\ngraph @main(%x: f32[4]) -> (%y: f32[4])"


def scheduled(begin: str, *margins: str) -> Program:
    """Return `%a`, `%b` and `%y = Add(%a, %b)` with these margins."""
    ops = ("%a: f32[4] = Relu(%x)", "%b: f32[4] = Neg(%x)", "%y: f32[4] = Add(%a, %b)")
    lines = [f"  {op} | {margin}" for op, margin in zip(ops, margins, strict=True)]
    return Program.parse("\n".join([f"{HEAD} {begin}{{", *lines, "  return %y | host wait e3", "}", ""]))


def hints(program: Program) -> list[str]:
    wording = ScheduleWording(program)
    found = validate(program).problems
    return [wording.explanation(each).hint for each in found if each.kind == "unbound-stream"]


@pytest.mark.parametrize(
    ("margin", "placement"),
    [
        ("| s3->4", Placement(stream=4, logical=(3,))),
        ("| s3 -> 4 record e1", Placement(stream=4, records=(1,), logical=(3,))),
        ("| s0->0", Placement(stream=0, logical=(0,))),
        ("| s0 begin s1->2 s3", Placement(stream=0, begins=(2, 3), logical=(None, 1, None))),
        ("| host begin s1->2", Placement(begins=(2,), logical=(None, 1))),
        ("| s4", Placement(stream=4)),
    ],
)
def test_text_has_both_numbers(margin: str, placement: Placement) -> None:
    program = Program.parse(f"{HEAD} {{\n  %y: f32[4] = Neg(%x) {margin}\n  return %y\n}}\n")
    assert program.graph.nodes[0].placement == placement
    assert Program.parse(program.text()) == program


@pytest.mark.parametrize(
    "margin", ["| s3->", "| s3->s4", "| s3->x", "| s3->4x", "| host->1", "| s3->12345678901"]
)
def test_a_wrong_binding_is_an_error(margin: str) -> None:
    with pytest.raises(ParseError):
        Program.parse(f"{HEAD} {{\n  %y: f32[4] = Neg(%x) {margin}\n  return %y\n}}\n")


@pytest.mark.parametrize(
    ("begin", "margins", "found"),
    [
        # The margins, and the hints.
        ("", ("s0 record e1", "s1 record e2", "s0 wait e2 record e3"), []),
        ("", ("s0->0", "s3->4 record e2", "s0->0 wait e2 record e3"), []),
        ("| s0 begin s3->4 ", ("s0->0", "s3->4 record e2", "s0->0 wait e2 record e3"), []),
        ("| s0 begin s3 s4 ", ("s0", "s3->4 record e2", "s0 wait e2 record e3"), ["write s3->4 at line 4"]),
        (
            "",
            ("s3", "s3->4 record e2", "s3 wait e2 record e3"),
            ["write s3->4 at line 5", "write s3->4 at line 7"],
        ),
        ("", ("s1->2", "s1->3 record e2", "s1->2 wait e2 record e3"), ["write s1->2 at line 6"]),
        # The stream of a statement counts before that of `begin`.
        ("| s0 begin s3->5 ", ("s0", "s3->4 record e2", "s0 wait e2 record e3"), ["write s3->4 at line 4"]),
        # Two logical streams may share a stream.
        ("", ("s0->1", "s3->1", "s0->1 record e3"), []),
    ],
)
def test_a_stream_that_is_not_rebound_is_reported(
    begin: str, margins: tuple[str, str, str], found: list[str]
) -> None:
    assert hints(scheduled(begin, *margins)) == found


@pytest.mark.parametrize("seed", range(20))
def test_binding_keeps_the_schedule_correct(seed: int, tmp_path: Path) -> None:
    program = with_schedule(Program.parse(layered(seed)), streams=3, devices={"v1*": "cuda:1"})
    streams = {stream: 10 + stream for stream in (1, 3)}
    made = bound(program, streams)
    assert validate(made).problems == validate(program).problems == ()
    assert "s1->11" in made.text()
    assert made.streams == {streams.get(number, number): device for number, device in program.streams.items()}
    assert Program.parse(made.text()).text() == made.text()
    file = tmp_path / "schedule.json"
    file.write_text(schedule_text(made))
    assert read_schedule(file, program) == made
    assert "s1->21" in bound(made, {11: 21}).text()


def test_an_order_keeps_the_bindings() -> None:
    program = scheduled("", "s0->0", "s3->4", "s0->0 record e3")
    assert "| s3->4" in played(program, seed=1).text()


def test_streams_that_cannot_be_bound_are_named() -> None:
    program = scheduled("", "s0", "s1 record e2", "s0 wait e2 record e3")
    with pytest.raises(UsageError, match="cannot bind stream s7: the program does not use it"):
        bound(program, {7: 1})
    declared = Program.parse(program.text().replace("\ngraph", '\nstream s1 "cuda:1"\n\ngraph', 1))
    with pytest.raises(UsageError, match="cannot bind stream s1 of device 'cuda:1' to s0"):
        bound(declared, {1: 0})
