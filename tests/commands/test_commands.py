"""The command table: names, breakpoint locations, completion, expressions and help."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest

import nncdbg
from nncdbg.commands import GROUPS, TABLE, find
from nncdbg.commands.command_lines import is_expression, separated, split_command
from nncdbg.commands.completion import candidates
from nncdbg.commands.session import CommandSession
from nncdbg.errors import UsageError
from nncdbg.presentation.screen import Screen
from nncdbg.target.breakpoint_syntax import StopSpec, parse_stop, split_value
from nncdbg.target.program import ProgramTarget


def test_help_is_one_line_with_a_full_stop() -> None:
    assert [entry.name for entry in TABLE.values() if "\n" in entry.help or entry.help[-1] not in ".;"] == []
    assert {entry.group for entry in TABLE.values()} == set(GROUPS)


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("n", "next"),
        ("s", "step"),
        ("si", "stepi"),
        ("c", "continue"),
        ("b", "break"),
        ("bk", "back"),
        ("w", "where"),
        ("u", "up"),
        ("f", "frame"),
        ("h", "help"),
        ("rc", "rcontinue"),
    ]
    + [("fin", "finish"), ("bt", "where"), ("p", "print"), ("q", "quit"), ("unt", "until"), ("wat", "watch")]
    + [("l", "list"), ("r", "run"), ("rb", "rback"), ("mark", "mark"), ("rest", "restart"), ("tb", "tbreak")],
)
def test_short_forms_and_prefixes_find_their_command(word: str, name: str) -> None:
    assert find(word).name == name


@pytest.mark.parametrize(
    ("word", "candidate"), [("st", "step"), ("mar", "marks"), ("re", "restart"), ("bra", "branch")]
)
def test_ambiguous_prefix_lists_its_commands(word: str, candidate: str) -> None:
    with pytest.raises(UsageError, match="several commands") as caught:
        find(word)
    assert candidate in str(caught.value.hint)


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("next 3", ("next", "3")),
        ("p%x", ("p", "%x")),
        ("list@main", ("list", "@main")),
        ("? next", ("?", "next")),
        ("!", ("!", "")),
        ("print  a b ", ("print", "a b")),
    ],
)
def test_line_splits_into_command_and_arguments(line: str, parts: tuple[str, str]) -> None:
    assert split_command(line) == parts


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("12", StopSpec("line", "12")),
        ("Conv", StopSpec("name", "Conv")),
        ("nncdbg.Empty", StopSpec("name", "nncdbg.Empty")),
        ("@layer/1", StopSpec("graph", "layer/1")),
        ("%/conv1/Conv_output_0 hits 3", StopSpec("value", "/conv1/Conv_output_0", None, "3")),
        ('%"odd if name:0" if max(%x) > 1', StopSpec("value", "odd if name:0", "max(%x) > 1")),
        ("12 if std(%h) > 10 hits >=3", StopSpec("line", "12", "std(%h) > 10", ">=3")),
        ("12 if(%h > 1)", StopSpec("line", "12", "(%h > 1)")),
        ("Relu hits %2", StopSpec("name", "Relu", None, "%2")),
        ("  5  if %hits hits 2 ", StopSpec("line", "5", "%hits", "2")),
        ("Relu stream s2", StopSpec("name", "Relu", stream="s2")),
        ("12 stream host if max(%x) > 1 hits 3", StopSpec("line", "12", "max(%x) > 1", "3", "host")),
        ("stream stream 1", StopSpec("name", "stream", stream="1")),
    ],
)
def test_breakpoint_locations_parse(text: str, spec: StopSpec) -> None:
    assert parse_stop(text) == spec


@pytest.mark.parametrize("text", ["", "%", "@", '%"open', "12 13", "12 if", "12 when x", '%"\\q"', "%a%b c"])
def test_invalid_breakpoint_locations_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_stop(text)


@pytest.mark.parametrize(
    "place", ["Add stream", "Add streams 1", "Add stream 1 stream 2", "Add if %x stream 1 hits"]
)
def test_invalid_streams_of_breakpoints_are_refused(place: str) -> None:
    with pytest.raises(UsageError):
        ProgramTarget(nncdbg.Debugger(SCHEDULED)).stops.add(place)


SCHEDULED = nncdbg.parse(
    "graph @main(%x: f32[2]) -> (%y: f32[2]) {\n"
    "  %n: f32[2] = Neg(%x) | s0\n"
    "  %a: f32[2] = Relu(%x) | s0 record e1\n"
    "  %b: f32[2] = Relu(%x) | s2 record e2\n"
    "  %y: f32[2] = Add(%a, %b) | s0 wait e2 record e3\n"
    "  %z: f32[2] = Relu(%x)\n"
    "  return %y | host wait e3\n}\n"
)


def test_a_running_script_has_no_streams() -> None:
    with pytest.raises(UsageError, match="a running script has no schedule"):
        parse_stop("Relu stream 1", streams=False)


def test_memory_is_counted_by_stream() -> None:
    debugger = nncdbg.Debugger(SCHEDULED, {"x": np.array([1, 2], np.float32)})
    assert "by stream: none" in nncdbg.execute(debugger, "info memory")
    ProgramTarget(debugger).stops.add("Add")
    debugger.run()
    assert "by stream: s0 16 B, s2 8 B" in nncdbg.execute(debugger, "info memory")


@pytest.mark.parametrize(
    ("place", "lines"),
    [
        # The breakpoint, and the lines where the program stops.
        ("Relu stream 2", [4]),
        ("Relu stream s0", [3]),
        ("Relu stream host", [6]),
        ("Relu", [3, 4, 6]),
        ("4 stream 0", []),
        ("Relu stream 2 if max($out) < 0", []),
        ("Relu stream 2 if max(%x) < 0 or true", [4]),
    ],
)
def test_a_breakpoint_of_a_stream_stops_at_its_statements(place: str, lines: list[int]) -> None:
    debugger = nncdbg.Debugger(SCHEDULED, {"x": np.array([1, 2], np.float32)})
    ProgramTarget(debugger).stops.add(place)
    stops = []
    while (stop := debugger.run()).reason == "breakpoint":
        stops.append(stop.line)
    assert stops == lines


@pytest.mark.parametrize(
    ("text", "message"),
    [("Relu stream 1", "there is no stream 1"), ("Relu stream x", "there is no stream x")],
)
def test_a_stream_that_the_program_does_not_use_is_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ProgramTarget(nncdbg.Debugger(SCHEDULED)).stops.add(text)
    with pytest.raises(UsageError, match="the program has no schedule"):
        ProgramTarget(
            nncdbg.Debugger(
                nncdbg.parse("graph @main(%x: f32[2]) -> (%y) {\n  %y = Neg(%x)\n  return %y\n}\n")
            )
        ).stops.add("Neg stream 1")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("%h", ("%h", "")),
        ("%h out.npy", ("%h", "out.npy")),
        ('%"odd name" my file.npy', ('%"odd name"', "my file.npy")),
        ("%h[0, :] 8", ("%h[0, :]", "8")),
        ("h 3", ("h", "3")),
    ],
)
def test_value_splits_from_the_rest_of_the_line(text: str, parts: tuple[str, str]) -> None:
    assert split_value(text) == parts


@pytest.fixture(scope="module")
def session(repository: Path) -> CommandSession:
    path = repository / "examples" / "first_steps.nnc"
    return CommandSession(ProgramTarget(nncdbg.Debugger(nncdbg.load(str(path)))), str(path), Screen())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("unt", ["until"]),
        ("p %sc", ["%scores"]),
        ("p mean(%sc", ["%scores"]),
        ("p sco", ["%scores"]),
        ("p argm", ["argmax(", "argmin("]),
        ("p $i", ["$in0", "$iter"]),
        ("stats %sh", ["%sharp"]),
        ("break Soft", ["Softmax"]),
        ("break @la", ["@layer"]),
        ("break la", ["@layer"]),
        ("break %ha", ["%half"]),
        ("watch %ste", ["%steps"]),
        ("help unt", ["until"]),
        ("catch ov", ["overflow"]),
        ("info pro", ["program"]),
        ("nosuch %", []),
        ("next ", []),
    ],
)
def test_completion_lists_candidates(session: CommandSession, line: str, expected: list[str]) -> None:
    assert candidates(session, line)[1] == expected


def test_completion_of_files_marks_and_branches(
    session: CommandSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.cmd").touch()
    (tmp_path / "only").mkdir()
    session.target.python_names()["debugger"].mark("outset")
    assert candidates(session, "source on")[1] == ["one.cmd", "only/"]
    assert candidates(session, "save %x on")[1] == ["one.cmd", "only/"]
    assert candidates(session, "goto out")[1] == ["outset"]
    assert candidates(session, "branch ")[1] == ["0"]


EXPRESSIONS = [
    "h > 0",
    "h == 0",
    "h * 2",
    "h - 1",
    "%x",
    "x",
    "x + 1",
    "x.mean()",
    "mean(%x)",
    "stats(%x).nan",
    "maen(%x)",
    "1 + 2",
    "-1",
    "[1, 2]",
]
COMMANDS = ["next", "n", "h", "p%x", "p (1)", "stats %x", "st", "foo", "foo bar", "list", "? next", "back 3"]


def test_a_line_without_a_command_is_an_expression(session: CommandSession) -> None:
    for line in (*EXPRESSIONS, "$iter", "("):
        assert is_expression(session.target, line), line
    for line in COMMANDS:
        assert not is_expression(session.target, line), line


def test_an_expression_is_printed(session: CommandSession, capsys: pytest.CaptureFixture[str]) -> None:
    session.screen = Screen()
    assert session.execute("1 + 2", typed=True)
    assert session.execute("x.shape", typed=True)
    assert not session.execute("%nope", typed=True)
    assert capsys.readouterr().out == "3\n(2, 4)\n"


def test_delete_of_all_needs_confirmation_on_a_terminal_only(
    session: CommandSession, capsys: pytest.CaptureFixture[str]
) -> None:
    session.screen = Screen()
    questions: list[str] = []

    def refuse(question: str) -> bool:
        questions.append(question)
        return False

    debugger = session.target.python_names()["debugger"]
    debugger.break_at(line=10)
    debugger.break_at(line=11)
    session.confirm = refuse
    session.execute("delete")
    session.execute("clearall")
    assert questions == ["delete all breakpoints (2)?"] * 2
    assert len(debugger.breakpoints) == 2
    session.execute("delete 1")
    assert len(questions) == 2
    session.execute("delete all")
    assert debugger.breakpoints == []
    session.execute("delete")
    assert len(questions) == 2, "without breakpoints, no confirmation"
    debugger.break_at(line=10)
    session.confirm = None
    session.execute("delete")
    assert debugger.breakpoints == []
    session.execute("d")
    error = capsys.readouterr().err
    assert "`delete` in gdb, `down` in pdb" in error


def test_run_of_a_started_program_needs_confirmation(session: CommandSession) -> None:
    session.screen = Screen()
    debugger = session.target.python_names()["debugger"]
    session.execute("next")
    session.confirm = lambda question: False
    session.execute("r")
    assert debugger.timeline.tick > 0
    assert not debugger.control.machine.ended
    session.confirm = lambda question: True
    session.execute("r")
    assert debugger.control.machine.ended
    session.confirm = None
    session.execute("restart")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("%h", ["%h"]),
        ("%a, max(%b, 1), %c[0, :]", ["%a", "max(%b, 1)", "%c[0, :]"]),
        ('%"odd, name", 2', ['%"odd, name"', "2"]),
        ('%"a \\" b, c", 2', ['%"a \\" b, c"', "2"]),
    ],
)
def test_expressions_are_split_at_commas(text: str, parts: list[str]) -> None:
    assert separated(text) == parts


def test_overview_fits_on_a_screen(session: CommandSession, capsys: pytest.CaptureFixture[str]) -> None:
    session.screen = Screen(width=80)
    session.execute("help")
    lines = capsys.readouterr().out.splitlines()
    assert 15 <= len(lines) <= 40
    assert max(map(len, lines)) <= 80
    for entry in TABLE.values():
        assert any(entry.name in line for line in lines)


def test_statistics_over_visits_outside_of_the_steps_of_a_training_point_into_a_step(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    debugger = nncdbg.Debugger(repository / "examples" / "train_mlp.nnc")
    session = CommandSession(ProgramTarget(debugger), "model", Screen())
    session.execute("break @train if $step == 5", typed=True)
    session.execute("run", typed=True)
    capsys.readouterr()
    session.execute("stats %w2 3", typed=True)
    inside = capsys.readouterr()
    assert [line.split()[0] for line in inside.out.splitlines()[1:]] == ["step", "3", "4", "5"]
    assert inside.err == ""
    session.execute("delete 1", typed=True)
    session.execute("continue", typed=True)
    capsys.readouterr()
    session.execute("stats %w2 3", typed=True)
    after = capsys.readouterr()
    assert [line.split()[0] for line in after.out.splitlines()[1:]] == ["visit", "0"]
    assert "stop in one, for example with `break @train`" in after.err


@pytest.fixture
def fresh(repository: Path) -> CommandSession:
    """A session that has run nothing."""
    return CommandSession(
        ProgramTarget(nncdbg.Debugger(repository / "examples" / "first_steps.nnc")), "model", Screen()
    )


def test_saved_breakpoints_are_set_again_by_source(
    fresh: CommandSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = io.StringIO()
    fresh.screen = Screen(out, out)

    def breakpoints() -> str:
        out.seek(0)
        out.truncate()
        assert fresh.execute("info breakpoints")
        return re.sub(r"^\d+:", "", out.getvalue(), flags=re.MULTILINE)

    lines = [
        *("break 17 if $iter > 0 hits >=2", "commands", "p 1", "end", "tbreak Softmax", "break @layer"),
        *("break %h", "watch %s if max(%s) > 1", "watch max(%s) > 1", "assert all(isfinite($out))"),
        *(
            "log 14 mean: {mean(%s)} if any hits 3",
            "condition $bpnum $iter > 1",
            "break 21",
            "disable $bpnum",
        ),
        *("break 18", "ignore $bpnum 3", "catch inf if $iter > 1"),
    ]
    for line in lines:
        assert fresh.execute(line), (line, out.getvalue())
    before = breakpoints()
    assert fresh.execute("save breakpoints stops.cmd")
    fresh.execute("delete")
    fresh.execute("uncatch")
    assert fresh.execute("source stops.cmd")
    assert breakpoints() == before
    assert "17 if $iter > 0 hits >=2" in before
    assert not fresh.execute("save breakpoints none/stops.cmd")


def test_printed_values_have_numbers(fresh: CommandSession) -> None:
    out = io.StringIO()
    fresh.screen = Screen(out, out)
    for line in ("print 2 + 3, 7", "p $1 * $2", "$3 + 1"):
        assert fresh.execute(line)
    assert out.getvalue().split() == ["5", "7", "35", "36"]
    assert not fresh.execute("p $9")
    for _ in range(100):
        fresh.execute("p 1")
    assert not fresh.execute("p $4")
    assert fresh.execute("p $5")


@pytest.mark.parametrize(
    ("moves", "place", "line", "iteration"),
    [
        ([], "21", 21, 0),  # forward, as it has not run
        (["goto 21"], "17", 17, 4),  # back to its last execution
        (["goto 17", "goto :0"], "17", 17, 0),
        (["goto 17"], "18", 18, 0),  # ahead in the running loop
        (["goto 17", "goto 18"], "17", 17, 0),
        (["goto 21"], "8", 10, 0),
        (["run"], "30", 33, 0),  # at or after the line
    ],
)
def test_goto_a_line_goes_to_its_last_execution_or_runs_to_it(
    fresh: CommandSession, moves: list[str], place: str, line: int, iteration: int
) -> None:
    fresh.execute("break 14")
    for move in moves:
        assert fresh.execute(move)
    assert fresh.execute(f"goto {place}")
    assert fresh.target.python_names()["debugger"].stop.line == line
    assert fresh.target.python_names()["debugger"].frames[0].iteration == iteration


def test_goto_a_line_that_will_not_run_is_refused_and_moves_nothing(fresh: CommandSession) -> None:
    fresh.execute("goto 21")
    tick = fresh.target.python_names()["debugger"].timeline.tick
    assert not fresh.execute("goto 26")
    assert fresh.target.python_names()["debugger"].timeline.tick == tick
    assert not fresh.execute("goto 999")


@pytest.mark.parametrize("traced", ["on", "off"])
def test_a_script_shows_its_commands(fresh: CommandSession, tmp_path: Path, traced: str) -> None:
    out = io.StringIO()
    fresh.screen = Screen(out, out)
    (tmp_path / "inner.cmd").write_text("p 2\n")
    (tmp_path / "outer.cmd").write_text(f"p 1\nsource {tmp_path}/inner.cmd\n")
    fresh.execute(f"set trace-commands {traced}")
    assert fresh.execute(f"source {tmp_path}/outer.cmd")
    shown = ["+p 1", "1", f"+source {tmp_path}/inner.cmd", "++p 2", "2"]
    assert out.getvalue().splitlines() == (shown if traced == "on" else ["1", "2"])
