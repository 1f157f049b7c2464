"""`py` and `interact`: namespace, output and errors."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import nncdbg
from nncdbg.commands.python_namespace import identifiers
from nncdbg.commands.session import CommandSession
from nncdbg.presentation.screen import Screen
from nncdbg.target.program import ProgramTarget

TEXT = """#nncdbg 1
opset 18

graph @main(%x: f32[3]) -> (%out: f32[3]) {
  %/enc/layers.0/Relu_output_0: f32[3] = Relu(%x)
  %/dec/Neg_output_0: f32[3] = Neg(%/enc/layers.0/Relu_output_0)
  %"max": f32[3] = Exp(%/dec/Neg_output_0)
  %input: f32[3] = Abs(%"max")
  %out: f32[3] = Neg(%input)
  return %out
}
"""


@pytest.fixture
def make() -> Callable[[], CommandSession]:
    """Return a function that makes a session."""

    def new() -> CommandSession:
        debugger = nncdbg.Debugger(nncdbg.parse(TEXT), inputs={"x": np.array([-1, 2, 3], np.float32)})
        written = io.StringIO()
        return CommandSession(ProgramTarget(debugger), "test.nnc", Screen(written, written))

    return new


@pytest.fixture
def session(make: Callable[[], CommandSession]) -> CommandSession:
    return make()


def output_of(session: CommandSession, *lines: str) -> str:
    """Return the output of the lines."""
    file = session.screen.out.file
    assert isinstance(file, io.StringIO)
    start = len(file.getvalue())
    for line in lines:
        session.execute(line)
    return file.getvalue()[start:]


def test_values_are_read_only_arrays_under_their_short_names(session: CommandSession) -> None:
    session.target.python_names()["debugger"].run()
    assert output_of(session, "py Relu_output_0.tolist()") == "[0.0, 2.0, 3.0]\n"
    assert output_of(session, "py type(x).__name__, x.flags.writeable") == "('ndarray', False)\n"
    # A value shadows the Python builtin of the same name.
    assert output_of(session, "py input.shape") == "(3,)\n"


def test_a_function_reads_current_values(session: CommandSession) -> None:
    lines = ["py", "def total():", "    return [float(v) for v in Neg_output_0]", "end"]
    assert output_of(session, *lines, "py total()").startswith(
        "error: %/dec/Neg_output_0 is not computed yet"
    )
    session.target.python_names()["debugger"].run()
    assert output_of(session, "py total()") == "[-0.0, -2.0, -3.0]\n"


def test_python_names_shadow_values(session: CommandSession) -> None:
    output_of(session, "py x = 5")
    assert output_of(session, "py x, debugger.value('x').tolist()") == "(5, [-1.0, 2.0, 3.0])\n"


def test_an_ambiguous_short_name_lists_the_names() -> None:
    found = identifiers(["/a/Mul_output_0", "/b/Mul_output_0", "c:0"])
    assert found["Mul_output_0"] == ["/a/Mul_output_0", "/b/Mul_output_0"]
    assert found["c_0"] == ["c:0"]
    assert found["_a_Mul_output_0"] == ["/a/Mul_output_0"]


def test_a_loop_drives_the_debugger_and_prints_each_stop(session: CommandSession) -> None:
    text = output_of(
        session,
        "py",
        "for _ in range(2):",
        '    execute("next")',
        "    print('at', debugger.stop.line)",
        "end",
    )
    assert text.index("at 6") < text.index("at 7")
    assert text.count("\n -> ") == 2


def test_a_move_through_the_api_prints_where_it_ends(session: CommandSession) -> None:
    text = output_of(session, "py [debugger.step_over().line for _ in range(3)]")
    assert text.splitlines()[0] == "[6, 7, 8]"
    assert text.count("\n -> ") == 1


def test_a_traceback_has_the_frames_of_the_user_only(session: CommandSession) -> None:
    text = output_of(session, "py", "def f(a):", "    return 1 / a", "", "f(0)", "end")
    assert text.startswith("error: Traceback (most recent call last):")
    assert 'File "<py>", line 2, in f' in text
    assert "return 1 / a" in text
    assert "ZeroDivisionError: division by zero" in text
    assert "nncdbg" not in text
    assert str(Path(sys.executable).parent) not in text


def test_an_error_of_a_callback_below_the_debugger_hides_its_frames(session: CommandSession) -> None:
    lines = ["py", "def when(message):", "    raise KeyError('mine')", "debugger.control.said = when"]
    lines += ["debugger.break_at(line=6, log='here')", "debugger.run()", "end"]
    text = output_of(session, *lines)
    assert "KeyError: 'mine'" in text
    assert "control.py" not in text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("py 1/0", "error: ZeroDivisionError: division by zero\n"),
        ("py nope", "error: NameError: name 'nope' is not defined"),
        ("py x[0] = 1", "assignment destination is read-only\n  hint: values are read-only"),
        ("py exit()", "error: the Python code called exit()"),
        ("py raise SystemExit(3)", "error: the Python code called exit()"),
        ("py def", "SyntaxError"),
        ('py execute("nope")', 'error: there is no command "nope"'),
        ("py execute(3)", "AttributeError"),
        ("py raise KeyboardInterrupt", "error: interrupted"),
        ("interact now", "`interact` takes no arguments"),
    ],
)
def test_an_error_keeps_the_session_open(session: CommandSession, line: str, message: str) -> None:
    assert message in output_of(session, line)
    assert not session.over
    assert output_of(session, "py 1 + 1") == "2\n"


def test_printed_control_characters_are_escaped(session: CommandSession) -> None:
    assert output_of(session, r"py print('\x1b[31mred', end='')") == "\\x1b[31mred\n"


def test_a_block_without_end_is_an_error(session: CommandSession, tmp_path: Path) -> None:
    script = tmp_path / "s.cmd"
    script.write_text("py\nx = 1\n")
    assert "`py` has no `end` line" in output_of(session, f"source {script}")
    assert output_of(session, "py 1 + 1") == "2\n"


def test_python_runs_in_commands_of_a_breakpoint(session: CommandSession) -> None:
    lines = ["break 7", "commands", "silent", "py", "for v in range(2):", "  print('v', v)", "end", "end"]
    output_of(session, *lines)
    assert output_of(session, "continue") == "v 0\nv 1\n"


def recorded(session: CommandSession, path: Path, *lines: str) -> None:
    """Record lines, with Python that runs."""
    output_of(session, f"record {path}")
    for line in lines:
        session.execute(line, typed=True)
    output_of(session, "record off")


def test_a_recording_runs_python_only_after_confirmation(
    session: CommandSession, tmp_path: Path, make: Callable[[], CommandSession]
) -> None:
    path = tmp_path / "r.log"
    recorded(session, path, "py print('ran')", "py print('again')")
    text = output_of(make(), f"replay {path}")
    assert text.count("the recording contains Python code") == 2
    assert "\nran\n" not in text
    assert "recorded: no stop" in text
    questions: list[str] = []

    def confirm(question: str) -> bool:
        questions.append(question)
        return True

    other = make()
    other.confirm = confirm
    assert "\nran\n" in output_of(other, f"replay {path}")
    assert len(questions) == 1


def test_python_in_command_files_of_a_recording_needs_consent(
    session: CommandSession, tmp_path: Path, make: Callable[[], CommandSession]
) -> None:
    script = tmp_path / "r.cmd"
    script.write_text("py print('ran')\n")
    recorded(session, tmp_path / "r.log", f"source {script}")
    text = output_of(make(), f"replay {tmp_path / 'r.log'}")
    assert "the recording contains Python code" in text
    assert "\nran\n" not in text


def test_python_in_breakpoint_commands_of_a_recording_needs_consent_after_the_replay_too(
    session: CommandSession, tmp_path: Path, make: Callable[[], CommandSession]
) -> None:
    path = tmp_path / "r.log"
    recorded(session, path, "break 7", "commands", "py print('ran')", "end")
    other = make()
    assert "1 stop and 1 result are the same" in output_of(other, f"replay {path}")
    text = output_of(other, "continue")
    assert "the recording contains Python code" in text
    assert "\nran\n" not in text
    text = output_of(other, "commands 1", "py print('own')", "end", "run")
    assert text.endswith("\nown\n")


@pytest.mark.parametrize("name", ["GeneratorExit", "type('Odd', (BaseException,), {})"])
def test_exceptions_that_are_not_errors_do_not_end_the_session(session: CommandSession, name: str) -> None:
    assert output_of(session, f"py raise {name}('why')").endswith(": why\n")
    assert output_of(session, "py 1 + 1") == "2\n"


def test_the_banner_of_interact_fits_the_width(
    session: CommandSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    output_of(session, "set width 60", "interact")
    banner = capsys.readouterr().err.splitlines()
    assert banner[0] == "Python: values are NumPy arrays; use `debugger` and"
    assert banner[1] == "`execute` for the session. Ctrl-D leaves."


def test_interact_reads_until_the_end_of_input(
    session: CommandSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sys.stdin", io.StringIO("y = x.sum()\nexecute('p %x[1]')\n1/0\ndebugger.step_over()\n")
    )
    text = output_of(session, "interact", "py float(y)")
    assert "ZeroDivisionError: division by zero" in text
    assert "code.py" not in text
    assert text.startswith("2.0\n")
    assert text.count("\n -> ") == 1
    assert text.endswith("4.0\n")
