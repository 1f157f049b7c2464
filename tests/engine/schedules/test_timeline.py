"""A timeline is a valid Chrome trace with the order of the schedule, and shows what ran out of order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

import nncdbg
from nncdbg.comparison.launches import launches
from nncdbg.comparison.schedule_problems import Party
from nncdbg.comparison.schedule_timeline import Times
from nncdbg.engine.schedules.races import Ordering
from nncdbg.engine.schedules.timeline import OrderViolation, order_violations, timeline
from nncdbg.ir.streams import HOST
from nncdbg.opening.schedule_logs.programs import LogRecord, program_of
from tests.opening.schedule_logs.random_logs import logs

PROGRAM = nncdbg.parse("""
stream s1 "cuda:0"

graph @main(%x: f32[4]) -> (%y: f32[4]) {
  %a: f32[4] = Relu(%x) | s0 record e1
  %b: f32[4] = Neg(%x) | s1 record e2
  %c: f32[4] = Exp(%b) | s1 record e3
  %y: f32[4] = Add(%a, %c) | s0 wait e3 record e4
  return %y | host wait e4
}
""")
MAIN = ("main",)


def of_phase(events: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    return [each for each in events if each["ph"] == phase]


def test_a_timeline_of_a_schedule_without_measured_times() -> None:
    """A16: lanes are streams, arrows are waits, and statements have their lines."""
    events = timeline(PROGRAM)
    lanes = {
        each["tid"]: each["args"]["name"] for each in of_phase(events, "M") if each["name"] == "thread_name"
    }
    assert lanes == {0: "host", 1: "s0", 2: "s1 cuda:0"}
    assert [
        (each["name"], lanes[each["tid"]], each["ts"], each["dur"]) for each in of_phase(events, "X")
    ] == [
        ("%a Relu", "s0", 0.0, 1.0),
        ("%b Neg", "s1 cuda:0", 0.0, 1.0),
        ("%c Exp", "s1 cuda:0", 1.0, 1.0),
        ("%y Add", "s0", 2.0, 1.0),
        ("main end", "host", 3.0, 1.0),
    ]
    assert [each["args"]["line"] for each in of_phase(events, "X")] == [5, 6, 7, 8, 9]
    assert of_phase(events, "X")[3]["args"] == {
        "statement": "main#3",
        "line": 8,
        "wait": ["e3"],
        "record": ["e4"],
    }
    starts, ends = of_phase(events, "s"), of_phase(events, "f")
    assert [(each["name"], each["id"], lanes[each["tid"]]) for each in starts] == [
        ("e3", 1, "s1 cuda:0"),
        ("e4", 2, "s0"),
    ]
    assert [(each["id"], lanes[each["tid"]], each["ts"]) for each in ends] == [
        (1, "s0", 2.0),
        (2, "host", 3.0),
    ]


def test_measured_statements_are_where_they_were_measured() -> None:
    times: Times = {(MAIN, 0): (100.0, 7.0), (MAIN, 1): (101.5, 2.0)}
    spans = {each["name"]: (each["ts"], each["dur"]) for each in of_phase(timeline(PROGRAM, times), "X")}
    assert spans["%a Relu"] == (100.0, 7.0)
    assert spans["%b Neg"] == (101.5, 2.0)
    assert spans["%c Exp"] == (103.5, 0.0)
    assert spans["%y Add"] == (107.0, 0.0)


@given(logs)
def test_a_planned_timeline_follows_the_order_of_the_schedule(records: list[LogRecord]) -> None:
    program = program_of(records, source="log").program
    issued = launches(program)
    ordering = Ordering(issued)
    statements = of_phase(timeline(program), "X")
    assert len(statements) == len(issued)
    for second, later in enumerate(statements):
        for first, earlier in enumerate(statements[:second]):
            if ordering.before(first, second):
                assert earlier["ts"] + earlier["dur"] <= later["ts"]
    for arrow in of_phase(timeline(program), "s"):
        assert any(
            each["tid"] == arrow["tid"] and each["ts"] <= arrow["ts"] < each["ts"] + each["dur"]
            for each in statements
        )


VIOLATIONS = {
    "in order": ({0: (0.0, 5.0), 1: (0.0, 5.0), 2: (5.0, 5.0), 3: (10.0, 5.0)}, []),
    "a reader began early": (
        {0: (0.0, 5.0), 1: (0.0, 5.0), 2: (3.0, 5.0), 3: (10.0, 5.0)},
        [OrderViolation(Party((MAIN, 1), 1, "b"), Party((MAIN, 2), 1, "b"), "write-read", 2.0)],
    ),
    "only conflicting statements count": ({0: (0.0, 5.0), 1: (0.0, 5.0), 2: (8.0, 5.0)}, []),
    "a reader ran before its writer": (
        {0: (20.0, 5.0), 3: (10.0, 5.0)},
        [OrderViolation(Party((MAIN, 0), 0, "a"), Party((MAIN, 3), 0, "a"), "write-read", 15.0)],
    ),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_order_violations(name: str) -> None:
    """A16: statements that conflict and ran in another order than the text, with both places."""
    times, expected = VIOLATIONS[name]
    assert order_violations(PROGRAM, None, {(MAIN, pc): span for pc, span in times.items()}) == expected


@given(logs)
def test_a_log_that_ran_in_its_order_has_no_violations(records: list[LogRecord]) -> None:
    log = program_of(records, source="log")
    assert order_violations(log.program, log.plan, log.times) == []
    assert HOST not in {site[1] for site in log.times}


@given(logs)
def test_a_log_that_ran_at_once_has_a_violation_per_conflict(records: list[LogRecord]) -> None:
    log = program_of(records, source="log")
    at_once = dict.fromkeys(log.times, (0.0, 1.0))
    found = {(each.first.site, each.second.site) for each in order_violations(log.program, log.plan, at_once)}
    issued = launches(log.program, log.plan)
    expected = set()
    for number, second in enumerate(issued):
        for first in issued[:number]:
            if first.site in at_once and second.site in at_once:
                pairs = [(a, b) for a in first.accesses for b in second.accesses if a.writes or b.writes]
                memories = [(a.memory, b.memory) for a, b in pairs]
                if any(a.begin < b.end and b.begin < a.end for a, b in memories):
                    expected.add((first.site, second.site))
    assert found == expected
