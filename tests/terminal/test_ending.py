"""Exit of the command during compilation of the statistics."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import atexit

from nncdbg import stats
from nncdbg.terminal import main


def session():
    stats.prepare()
    atexit.register(print, "saved")
    return 3


main.main = session
raise SystemExit(main.run())
"""


def test_compilation_keeps_the_exit_code_and_runs_exit_functions(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "saved\n", "")
    compiled = list(tmp_path.rglob("*.nbc"))
    assert len(compiled) < 10, "the exit waited for the compilation"
