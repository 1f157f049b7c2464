"""Settings of the screen, the pager, and lines of the model's source."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import nncdbg
from nncdbg.commands.session import CommandSession
from nncdbg.presentation.screen import Screen
from nncdbg.target.program import ProgramTarget

LONG = "/model/decoder/layers.0/self_attn/Add_output_0"
MODEL = f"""#nncdbg 1
opset 18

graph @main(%x: f32[64]) -> (%y: f32[64]) {{
  %{LONG}: f32[64] = Add(%x, %x) loc("net.py":2)
  %y: f32[64] = Relu(%{LONG}) loc("net.py":3)
  return %y
}}
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandSession:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    (tmp_path / "net.py").write_text("def forward(x):\n    x = x + x\n    return relu(x)\n")
    (tmp_path / "m.nnc").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    out = Terminal()
    debugger = nncdbg.Debugger(nncdbg.load("m.nnc"), {"x": np.linspace(-1, 1, 64, dtype=np.float32)})
    session = CommandSession(ProgramTarget(debugger), "m.nnc", Screen(out, out, width=80))
    session.execute("next")
    return session


def output_of(session: CommandSession, *lines: str) -> str:
    out = session.screen.out.file
    assert isinstance(out, Terminal)
    out.seek(0)
    out.truncate()
    for line in lines:
        session.execute(line)
    return re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())


def test_names_are_short_or_full(session: CommandSession) -> None:
    assert "%Add_output_0 f32[64] min -2" in output_of(session, "info values")
    assert f"%{LONG} f32[64]\n    min -2" in output_of(session, "set names full", "info values")
    assert "%Add_output_0 f32[64] min -2" in output_of(session, "set names short", "info values")


def test_precision_applies_to_statistics_and_elements(session: CommandSession) -> None:
    assert "std 1.17\n" in output_of(session, "set precision 3", "info values Add")
    assert "std 1.172886\n" in output_of(session, "set precision 7", "info values Add")
    assert "-0.349\n" in output_of(session, "set precision 3", "show %Add_output_0[26]")


def test_width_bounds_lines(session: CommandSession) -> None:
    assert max(map(len, output_of(session, "set width 30", "list", "info values").splitlines())) <= 30
    assert "width is 30" in output_of(session, "show width")


@pytest.mark.parametrize("width", [40, 60, 80])
def test_help_wraps_at_words_within_the_width(session: CommandSession, width: int) -> None:
    text = output_of(session, f"set width {width}", "help")
    assert max(map(len, text.splitlines())) <= width
    footer = " ".join(text[text.index("`help NAME`") :].split())
    assert footer.endswith("An empty line repeats the last step.")


@pytest.mark.parametrize(
    "line", ["names long", "precision 0", "precision x1", "precision 1.5", "width 3", "width -4", "pager 1"]
)
def test_an_invalid_setting_is_refused_with_the_valid_values(session: CommandSession, line: str) -> None:
    text = output_of(session, f"set {line}")
    assert text.startswith("error: ")
    assert "VALUE is" in text


def test_settings_are_listed_and_values_of_the_same_name_win(session: CommandSession) -> None:
    assert [
        line.split()[0] for line in output_of(session, "show settings").splitlines() if " is " in line
    ] == [
        "names",
        "pager",
        "precision",
        "times",
        "trace-commands",
        "unread-views",
        "view",
        "width",
    ]
    assert "there is no value" in output_of(session, "set width = 3")


def test_only_long_output_goes_through_the_pager(
    session: CommandSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    paged = tmp_path / "paged"
    monkeypatch.setattr("pydoc.pager", lambda text: paged.write_text(text))
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(type(session.screen.out), "height", 5)
    assert "graph @main" in output_of(session, "list 4,5")
    assert not paged.exists()
    assert output_of(session, "list 1,8") == ""
    assert "graph @main" in paged.read_text()
    paged.unlink()
    assert "graph @main" in output_of(session, "set pager off", "list 1,8")
    assert not paged.exists()


def test_lines_of_the_source_are_listed_with_their_statements(session: CommandSession) -> None:
    text = output_of(session, "list net.py:3")
    assert "*2     x = x + x\n*3     return relu(x)\n" in text
    assert text.endswith('line 6: %y: f32[64] = Relu(%Add_output_0) loc("net.py":3)\n')
    Path("net.py").unlink()
    assert "net.py was not found" in output_of(session, "list net.py:3")
    assert "no statement comes from other.py" in output_of(session, "list other.py:3")


def test_a_line_of_the_source_can_be_a_breakpoint_and_is_shown_in_the_stack(session: CommandSession) -> None:
    output_of(session, "break net.py:3", "restart", "continue")
    assert session.target.python_names()["debugger"].stop.line == 6
    assert 'loc("net.py":3)\n' in output_of(session, "where")
    assert "     from net.py:3  return relu(x)\n" in output_of(session, "set width 60", "where")
    Path("net.py").write_text("# shorter now\n")
    assert "     from net.py:3\n" in output_of(session, "where")
    Path("net.py").unlink()
    assert "     from net.py:3\n" in output_of(session, "where")


def test_images_state_that_cells_are_means() -> None:
    from nncdbg.presentation.character_images import image
    from nncdbg.presentation.elements import Layout

    layout = Layout(40, color=True)
    assert "mean" not in image(np.eye(20), layout=layout).plain
    assert "each cell is the mean of 10x10 elements" in image(np.ones((400, 200)), layout=layout).plain
