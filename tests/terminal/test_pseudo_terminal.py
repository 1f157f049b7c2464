"""The prompt in a pseudo-terminal."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

PROMPT = r"\(nncdbg\)"
TIMEOUT = 300.0
"""Seconds that output is waited for; the machine may be busy."""

ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[()][A-Z0-9]|[=>])|\r")

ENDLESS = """#nncdbg 1
opset 18

graph @main(%x: f32[4]) -> (%y: f32[4]) {
  while @spin (%s: f32[4] = %x) count %i: i64[] {
    %go: bool[] = Greater(%i, -1)
    break unless %go
    %t: f32[4] = Neg(%s)
    next %s = %t
  } -> (%y: f32[4] = %s)
  return %y
}
"""

Open = Callable[..., pexpect.spawn]


@pytest.fixture
def spawn(tmp_path: Path, repository: Path) -> Iterator[Open]:
    """`spawn(*arguments, columns=, environment=)` starts nncdbg in a terminal and waits for the prompt."""
    children: list[pexpect.spawn] = []

    def start(*arguments: str, columns: int = 80, **environment: str) -> pexpect.spawn:
        inherited = {
            key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")
        }
        state = {
            "TERM": "xterm-256color",
            "PAGER": "cat",
            "XDG_STATE_HOME": str(tmp_path / "state"),
            "PROMPT_TOOLKIT_NO_CPR": "1",
        }
        child = pexpect.spawn(
            sys.executable,
            ["-m", "nncdbg", *arguments],
            cwd=repository,
            env=inherited | state | environment,
            dimensions=(40, columns),
            encoding="utf-8",
            timeout=TIMEOUT,
        )
        children.append(child)
        child.expect(PROMPT)
        return child

    yield start
    for child in children:
        child.close(force=True)


def answer(child: pexpect.spawn, line: str) -> str:
    """Send a line and return the output up to the next prompt, without escape codes."""
    child.send(line + "\r")
    child.expect(re.escape(line[-3:]) + r"[^\n]*\r\n")
    child.expect("(?:\x1b\\[[0-9;?]*[A-Za-z])*" + PROMPT)
    return ESCAPES.sub("", child.before)


def leave(child: pexpect.spawn) -> None:
    child.sendcontrol("d")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_a_step_shows_values_and_ctrl_d_leaves(spawn: Open) -> None:
    child = spawn("examples/first_steps.nnc")
    assert "%h f32[2,4]" in answer(child, "next")
    assert "1.491" in answer(child, "p %h")
    assert "error: there is no command" in answer(child, "foo")
    leave(child)


def test_empty_line_repeats(spawn: Open) -> None:
    child = spawn("examples/first_steps.nnc")
    answer(child, "next")
    child.send("\r")
    child.expect("%scores f32")
    child.expect(PROMPT)
    leave(child)


def test_tab_completes(spawn: Open) -> None:
    child = spawn("examples/first_steps.nnc")
    for start, rest in (
        ("unt", "il"),
        ("p %sco", "res"),
        ("break Reduce", "Me"),
        ("list @lay", "er"),
        ("info m", "a"),
    ):
        child.send(start + "\t")
        child.expect(re.escape(rest))
        child.sendcontrol("c")
        child.expect(PROMPT)
    leave(child)


def test_interrupt_stops_a_loop_within_one_op(spawn: Open, tmp_path: Path) -> None:
    (tmp_path / "endless.nnc").write_text(ENDLESS)
    child = spawn(str(tmp_path / "endless.nnc"))
    child.send("continue\r")
    child.expect("running, statement \\d+")
    start = time.monotonic()
    child.sendcontrol("c")
    child.expect("Paused after (\\d+) statements")
    assert time.monotonic() - start < 30
    child.expect("->")
    child.expect(PROMPT)
    first = answer(child, "p $iter").strip()
    assert int(first) > 0
    answer(child, "next")
    assert "@spin" in answer(child, "where")
    answer(child, "back 2")
    child.send("continue\r")
    child.expect("running, statement \\d+")
    child.sendcontrol("c")
    child.expect("Paused after")
    child.expect(PROMPT)
    leave(child)


def test_an_interrupted_run_exits_with_130(tmp_path: Path) -> None:
    (tmp_path / "endless.nnc").write_text(ENDLESS)
    arguments = ["-m", "nncdbg", "run", str(tmp_path / "endless.nnc")]
    child = pexpect.spawn(sys.executable, arguments, encoding="utf-8", timeout=TIMEOUT)
    child.expect("running, statement \\d+")
    child.sendcontrol("c")
    child.expect("interrupted")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130


def test_interrupt_at_the_prompt_clears_the_line(spawn: Open) -> None:
    child = spawn("examples/first_steps.nnc")
    child.send("nonsense")
    child.sendcontrol("c")
    child.expect(PROMPT)
    assert "%h f32[2,4]" in answer(child, "next")
    leave(child)


def test_arrow_up_recalls_lines_of_this_and_the_previous_session(spawn: Open, tmp_path: Path) -> None:
    child = spawn("examples/first_steps.nnc")
    answer(child, "p 41 + 1")
    child.send("\x1b[A\r")
    child.expect("42\r\n")
    child.expect(PROMPT)
    leave(child)
    assert "p 41 + 1" in (tmp_path / "state" / "nncdbg" / "history").read_text()
    child = spawn("examples/first_steps.nnc")
    child.send("\x1b[A\r")
    child.expect("42\r\n")
    child.expect(PROMPT)
    leave(child)


def test_an_unwritable_home_is_reported(spawn: Open) -> None:
    child = spawn("examples/first_steps.nnc", XDG_STATE_HOME="/proc/nowhere")
    assert "the command history is not saved" in ESCAPES.sub("", child.before).replace("\n", " ")
    assert "%h f32[2,4]" in answer(child, "next")
    leave(child)


KEYS = (
    ("\x1b[1;3D", "this is the start of the program"),
    ("\x18n", "%h f32"),
    ("\x18b", "->[^ ]* 10"),
    ("\x1b[21~", "%h f32"),
    ("\x1b[1;3D", "->[^ ]* 10"),
    ("\x18s", "in @layer"),
    ("\x18f", "in @main"),
    ("\x1b[1;3D", "->[^ ]* 10"),
    ("\x1b[23~", "in @layer"),
    ("\x1b[23;2~", "in @main"),
    ("\x18w", "@main, line 11"),
    ("\x18l", "->[^ ]* 11"),
    ("\x1b[20~", "Breakpoint 1: line 11"),
    ("\x18c", "The program has ended"),
    ("\x18r", "Breakpoint 1, line 11"),
    ("\x1b[15~", "The program has ended"),
)


def test_keys_run_commands(spawn: Open) -> None:
    child = spawn("examples/first_steps.nnc", NO_COLOR="1")
    for keys, seen in KEYS:
        child.send(keys)
        child.expect(seen)
        child.expect(PROMPT)
    leave(child)


def test_output_fits_twenty_columns(spawn: Open) -> None:
    child = spawn("examples/first_steps.nnc", columns=20)
    for line in ("n", "n", "list", "stats %h", "show %h", "hist %h", "p %z", "i prog", "help"):
        seen = answer(child, line)
        wide = [part for part in seen.split("\n") if len(part) > 20]
        assert wide == []
        assert seen.strip()
    leave(child)


@pytest.mark.parametrize("variable", ["NO_COLOR", "TERM"])
def test_colour_can_be_turned_off(spawn: Open, variable: str) -> None:
    child = spawn("examples/first_steps.nnc", **{variable: "1" if variable == "NO_COLOR" else "dumb"})
    child.send("next\r")
    child.expect("%h f32\\[2,4\\]")
    child.expect(PROMPT)
    assert re.findall(r"\x1b\[(?:3\d|4\d|9\d|38;[\d;]+)m", child.before) == []
    leave(child)


def test_a_terminal_gets_colour(spawn: Open) -> None:
    child = spawn("examples/first_steps.nnc")
    child.send("next\r")
    child.expect("->")
    child.expect(PROMPT)
    assert "\x1b[36m" in child.before
    leave(child)


def test_a_pipe_gets_no_escape_codes(repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nncdbg", "examples/first_steps.nnc"],
        input="next\nlist\nfoo\nshow %h\n",
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    assert "(nncdbg) list\n" in done.stdout


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_keys_work_in_tmux(tmp_path: Path, repository: Path) -> None:
    socket = str(tmp_path / "tmux")

    def tmux(*arguments: str) -> str:
        return subprocess.run(
            ["tmux", "-S", socket, *arguments], capture_output=True, text=True, check=True, timeout=TIMEOUT
        ).stdout

    def wait_for(text: str) -> None:
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end:
            if text in tmux("capture-pane", "-p"):
                return
            time.sleep(0.1)
        pytest.fail(f"{text!r} is not shown: {tmux('capture-pane', '-p')}")

    command = f"XDG_STATE_HOME={tmp_path} {sys.executable} -m nncdbg examples/first_steps.nnc"
    tmux("new-session", "-d", "-x", "70", "-y", "24", "-c", str(repository), command)
    try:
        wait_for("(nncdbg)")
        tmux("send-keys", "nex", "Tab", "Enter")
        wait_for("%h f32[2,4]")
        tmux("send-keys", "F10")
        wait_for("%scores f32[2,3]")
        tmux("send-keys", "M-Left")
        wait_for("(nncdbg) back")
    finally:
        kill = ["tmux", "-S", socket, "kill-server"]
        subprocess.run(kill, capture_output=True, timeout=TIMEOUT, check=False)


def test_pasted_lines_run_one_by_one(spawn: Open) -> None:
    child = spawn("examples/first_steps.nnc")
    child.send("\x1b[200~break 13\ncontinue\nwhere\x1b[201~")
    child.send("\r")
    child.expect(r"Breakpoint 1: line 13")
    child.expect(r"#1 @main, line 12")
    child.expect(PROMPT)
    leave(child)


def test_breakpoint_commands_have_a_prompt_of_their_own(spawn: Open) -> None:
    child = spawn("examples/first_steps.nnc")
    answer(child, "break 13")
    child.send("commands\r")
    child.expect(">")
    child.send("p $iter + 100\r")
    child.expect(r"100[^\n]*\n[^\n]*>")
    answer(child, "end")
    assert "\n100\n" in answer(child, "continue")
    assert "p $iter + 100" in answer(child, "info b")
    leave(child)


def test_delete_of_all_breakpoints_needs_confirmation(spawn: Open) -> None:
    child = spawn("examples/first_steps.nnc")
    answer(child, "break 13")
    child.send("delete\r")
    child.expect(r"delete all breakpoints \(1\)\? \[y/N\]")
    child.send("n\r")
    child.expect(PROMPT)
    assert "1: line 13" in answer(child, "info b")
    leave(child)
