"""The package and its commands run without Unix modules, as on Windows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
MISSING = ["fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"]
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({MISSING}))"
COMMANDS = ["run X", "print X", "watch X", "diff X X", "X --replay demo.cmd"]


def without_unix(script: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"{WITHOUT}; {script}", *arguments]
    environment = {**os.environ, "XDG_STATE_HOME": str(folder)}
    return subprocess.run(command, cwd=EXAMPLES, env=environment, capture_output=True, text=True, timeout=600)


def test_the_package_is_imported_without_unix_modules(tmp_path: Path) -> None:
    ended = without_unix("import nncdbg; nncdbg.Debugger", tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs_without_unix_modules(command: str, tmp_path: Path) -> None:
    arguments = command.replace("X", "first_steps.nnc").split()
    ended = without_unix("from nncdbg.terminal.main import run; run()", tmp_path, *arguments)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout
