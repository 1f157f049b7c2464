"""The prompt of `nncdbg.breakpoint()` in a script that runs without an editor."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pexpect
import pytest

pytestmark = pytest.mark.usefixtures("forked_processes")

HEAD = '''\
import nncdbg

TEXT = """graph @main(%x: f32[4]) -> (%y: f32[4]) {
  %h: f32[4] = Log(%x)
  %k: f32[4] = Mul(%h, 0.0)
  %y: f32[4] = Add(%k, 1.0)
  return %y
}
"""

def debugger():
    return nncdbg.Debugger(nncdbg.parse(TEXT), {"x": [1, 2, 3, 4]})

'''

LINES_BEFORE = HEAD.count("\n")


class Script:
    """Runs a script with commands on its standard input."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "script.py"

    def write(self, body: str) -> None:
        self.path.write_text(HEAD + textwrap.dedent(body).lstrip())

    def run(
        self, body: str, commands: str, code: int = 0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        self.write(body)
        found = subprocess.run(
            [sys.executable, str(self.path)],
            input=commands,
            capture_output=True,
            text=True,
            timeout=600,
            env={**os.environ, **environment},
        )
        assert found.returncode == code, found.stderr
        return found


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


def test_the_prompt_opens_before_the_next_statement_and_continue_returns(script: Script) -> None:
    found = script.run(
        """
        nncdbg.breakpoint()
        d = debugger()
        print("script", d.run().reason, d.outputs["y"].tolist())
        """,
        "next\nset %h = 7\ncontinue\n",
    )
    assert f"Paused: nncdbg.breakpoint() at script.py:{LINES_BEFORE + 1}" in found.stdout
    assert "-> 2   %h: f32[4] = Log(%x)" in found.stdout
    assert found.stdout.endswith("script end [1.0, 1.0, 1.0, 1.0]\n")


def test_the_interrupted_call_of_the_script_runs_to_its_end(script: Script) -> None:
    found = script.run(
        """
        d = debugger()
        d.break_at(line=4)
        nncdbg.breakpoint()
        print("script", d.run_to(line=3).line, d.run().line, d.run().reason)
        """,
        "continue\n",
    )
    assert found.stdout.endswith("script 3 4 end\n")


def test_a_breakpoint_and_a_catch_set_at_the_prompt_open_it_again(script: Script) -> None:
    found = script.run(
        """
        d = nncdbg.Debugger(nncdbg.parse(TEXT), {"x": [0, 1, 2, 3]})
        nncdbg.breakpoint()
        print("script", d.run().reason)
        """,
        "catch nan\nbreak 4\ncontinue\np $line\ncontinue\n",
    )
    assert "also breakpoint 1" in found.stdout
    assert found.stdout.endswith("script end\n")


def test_a_failure_opens_the_prompt_and_then_reaches_the_script(script: Script) -> None:
    found = script.run(
        """
        text = "graph @main(%x: f32[2]) -> (%y) {\\n  %y = mine.Unknown(%x)\\n  return %y\\n}\\n"
        d = nncdbg.Debugger(nncdbg.parse(text))
        nncdbg.breakpoint()
        print("script", d.run().reason)
        """,
        "break 3\ncontinue\np %x\ncontinue\n",
    )
    assert found.stdout.count("(nncdbg)") == 4
    assert found.stdout.endswith("script exception\n")


def test_a_program_that_ends_at_the_prompt_can_be_inspected(script: Script) -> None:
    found = script.run(
        """
        d = debugger()
        nncdbg.breakpoint()
        print("script", d.run().reason)
        """,
        "next 9\np %y\ncontinue\n",
    )
    assert "The program has ended after 4 statements" in found.stdout
    assert found.stdout.endswith("script end\n")


def test_quit_ends_the_script(script: Script) -> None:
    found = script.run("nncdbg.breakpoint()\ndebugger().run()\nprint('not reached')\n", "quit\n", 1)
    assert "not reached" not in found.stdout
    assert found.stderr == ""


def test_input_that_ends_at_the_prompt_is_an_error(script: Script) -> None:
    found = script.run("nncdbg.breakpoint()\ndebugger().run()\n", "next\n", 1)
    assert "UsageError: standard input ended at the prompt of nncdbg.breakpoint()" in found.stderr


def test_python_breakpoint_can_be_nncdbg_breakpoint(script: Script) -> None:
    found = script.run(
        "breakpoint()\nprint('script', debugger().run().reason)\n",
        "continue\n",
        PYTHONBREAKPOINT="nncdbg.breakpoint",
    )
    assert f"nncdbg.breakpoint() at script.py:{LINES_BEFORE + 1}" in found.stdout
    assert found.stdout.endswith("script end\n")


def test_a_breakpoint_in_a_kernel_stops_before_the_next_statement(script: Script) -> None:
    found = script.run(
        """
        @nncdbg.op("mine.Stop", infer=lambda attributes, types: [types[0]])
        def stop(xp, x):
            nncdbg.breakpoint()
            return x + 1

        program = nncdbg.parse(TEXT.replace("Log(", "mine.Stop("))
        d = nncdbg.Debugger(program, {"x": [1, 2, 3, 4]}, allocator="plain")
        print("script", d.run().reason)
        """,
        "p %h\ncontinue\n",
    )
    assert "-> 3   %k: f32[4] = Mul(%h, 0.0)" in found.stdout
    assert found.stdout.endswith("script end\n")


def test_a_breakpoint_after_which_no_graph_runs_is_reported(script: Script) -> None:
    found = script.run("nncdbg.breakpoint()\n", "")
    place = f"nncdbg.breakpoint() at script.py:{LINES_BEFORE + 1}"
    assert found.stderr == f"nncdbg: {place} opened no prompt: no graph ran after it\n"


def test_under_pytest_the_error_names_its_option(script: Script) -> None:
    script.write("def test_it():\n    nncdbg.breakpoint()\n    debugger().run()\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(script.path)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=script.path.parent)
    assert found.returncode == 1
    assert "nncdbg.breakpoint() needs standard input, but pytest captures it" in found.stdout
    assert "hint: run pytest with -s" in found.stdout


def test_a_terminal_has_the_full_prompt(script: Script, tmp_path: Path) -> None:
    script.write("nncdbg.breakpoint()\nprint('script', debugger().run().reason)\n")
    environment: dict[str, str] = {**os.environ, "TERM": "xterm", "XDG_STATE_HOME": str(tmp_path)}
    child = pexpect.spawn(
        sys.executable,
        [str(script.path)],
        encoding="utf-8",
        timeout=600,
        env=environment,
        dimensions=(40, 80),
    )
    child.expect(r"\(nncdbg\)")
    child.send("next\r")
    child.expect("%h f32")
    child.send("continue\r")
    child.expect("script end")
    child.expect(pexpect.EOF)
