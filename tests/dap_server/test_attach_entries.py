"""Entries of listening programs, for the attach picker of an editor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

LISTENS = """
import os, sys
import nncdbg
address = nncdbg.listen(("127.0.0.1", 0))
if os.fork() == 0:
    sys.exit()
os.wait()
print(os.getpid(), address[1], flush=True)
sys.stdin.readline()
"""


def test_a_program_has_an_entry_while_it_listens(tmp_path: Path) -> None:
    script = tmp_path / "listens.py"
    script.write_text(LISTENS)
    folder = tmp_path / "state" / "nncdbg" / "listening"
    folder.mkdir(parents=True)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    stale = folder / f"{ended.pid}.json"
    stale.write_text("{}")
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    command = [sys.executable, str(script)]
    with subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        pid, port = program.stdout.readline().split()
        entry = folder / f"{pid}.json"
        assert list(folder.iterdir()) == [entry], "a fork keeps the entry, and a stale entry is removed"
        assert entry.stat().st_mode & 0o777 == 0o600
        assert json.loads(entry.read_text()) == {
            "connect": {"host": "127.0.0.1", "port": int(port)},
            "program": str(script),
        }
        program.communicate("\n", timeout=600)
    assert program.returncode == 0
    assert list(folder.iterdir()) == []


def test_a_program_listens_even_if_no_entry_can_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "state"
    blocked.write_text("a file")
    environment = {**os.environ, "XDG_STATE_HOME": str(blocked)}
    line = 'import nncdbg; nncdbg.listen(("127.0.0.1", 0))'
    done = subprocess.run([sys.executable, "-c", line], env=environment, capture_output=True, text=True)
    assert done.returncode == 0
    assert "editors cannot list this process" in done.stderr
