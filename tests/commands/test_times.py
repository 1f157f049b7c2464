"""`set times on`: the margin of `list`, and the tables of `info time`."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

import nncdbg
from nncdbg.commands.session import CommandSession
from nncdbg.presentation.screen import Screen
from nncdbg.target.program import ProgramTarget

ROW = re.compile(r" *[\d.]+ (?:ns|us|ms|s) +[\d.]+ (?:ns|us|ms|s) +[\d.]+% ")


@pytest.fixture
def session(repository: Path) -> CommandSession:
    out = io.StringIO()
    debugger = nncdbg.Debugger(nncdbg.load(str(repository / "examples" / "first_steps.nnc")))
    return CommandSession(ProgramTarget(debugger), "first_steps.nnc", Screen(out, out))


def output_of(session: CommandSession, *lines: str) -> list[str]:
    out = session.screen.out.file
    assert isinstance(out, io.StringIO)
    for line in lines:
        out.seek(0)
        out.truncate()
        session.execute(line)
    return out.getvalue().splitlines()


def test_a_listing_shows_the_times_of_measured_statements(session: CommandSession) -> None:
    plain = output_of(session, "next", "next", "list 10,12")
    timed = output_of(session, "restart", "set times on", "next", "next", "list 10,12")
    assert timed[0].split() == ["median", "min", "share"]
    assert [bool(ROW.match(line)) for line in timed[1:]] == [True, True, False]
    assert [line[25:] for line in timed[1:]] == plain
    assert output_of(session, "set times off", "list 10,12") == plain


def test_a_call_in_a_listing_has_the_share_of_the_kernels_inside(session: CommandSession) -> None:
    timed = output_of(session, "set times on", "next", "list 10")
    assert ROW.match(next(line for line in timed if "@layer(" in line))
    (line,) = [line for line in timed if "@layer(" in line]
    assert "100.0%" in line


def test_info_time_has_the_table_of_the_present_graph_and_of_the_run(session: CommandSession) -> None:
    assert "`set times on` measures statements" in output_of(session, "info time")
    assert "no statement was measured yet" in output_of(session, "set times on", "info time")
    present = output_of(session, "next", "next", "info time")
    assert [line.split()[-2:] for line in present[2:5]][0] == ["shapes", "where"]
    assert [line for line in present if "@layer" in line]
    assert [line for line in present if "MatMul" in line]
    assert not [line for line in present if "ReduceMean" in line], "it is in @layer"
    assert present[-1].startswith(tuple("123456789"))
    assert "in the kernels of 4 statements" in present[-1]
    by_op = output_of(session, "info time op")
    assert {line.split()[-1] for line in by_op[3:-1]} == {"ReduceMean", "Sub", "Relu", "MatMul"}
    assert output_of(session, "info time color") == [
        "error: times are not grouped by color",
        "  hint: use one of: statement, op, layer, line",
    ]


def test_the_setting_is_shown_and_refuses_other_values(session: CommandSession) -> None:
    assert output_of(session, "show times")[0].startswith("times is off (on or off)")
    assert output_of(session, "set times on", "show times")[0].startswith("times is on (on or off)")
    assert output_of(session, "set times maybe")[0] == "error: times cannot be maybe"


def test_a_second_run_adds_its_calls(session: CommandSession) -> None:
    output_of(session, "set times on", "next", "next", "restart", "next", "next")
    assert session.target.python_names()["debugger"].times.statements[("main",), 1].kernel.calls == 2
