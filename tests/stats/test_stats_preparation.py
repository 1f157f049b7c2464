"""Preparation of the compiled statistics: it happens once per process, so each test runs its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECK = "s = stats.summarize(np.arange(5, dtype=np.float32)); assert (s.max, s.count) == (4.0, 5)"


def run(*lines: str, **environment: str) -> str:
    script = "\n".join(["import sys, numpy as np", *lines])
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, **environment},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_numba_is_not_imported_before_preparation() -> None:
    assert (
        run("from nncdbg import stats", CHECK, "print('numba' in sys.modules, stats.ready())")
        == "False False"
    )


def test_the_plain_pass_is_used_without_numba() -> None:
    out = run(
        "sys.modules['numba'] = None",
        "from nncdbg import stats",
        "stats.prepare(wait=True)",
        CHECK,
        "print(stats.ready(), stats.failure())",
    )
    assert out.startswith(("False ModuleNotFoundError", "False ImportError"))


def test_exit_during_compilation_is_safe(tmp_path: Path) -> None:
    run("from nncdbg import stats", "stats.prepare()", "stats.prepare()", NUMBA_CACHE_DIR=str(tmp_path))


def test_compilation_catches_no_warnings_of_other_threads(tmp_path: Path) -> None:
    run(
        "import warnings",
        "from nncdbg import stats",
        "from nncdbg.stats import preparation",
        "import numba",
        "preparation.NAMES = ('u8',)",
        "shown = warnings._showwarnmsg_impl",
        "stats.prepare()",
        "while not preparation._preparation.finished.wait(0.001):",
        "    assert warnings._showwarnmsg_impl is shown",
        NUMBA_CACHE_DIR=str(tmp_path),
    )


def test_compilation_works_without_a_cache_folder() -> None:
    """numba rejects `cache=True` where it finds no folder for a cache."""
    out = run(
        "from numba.core import caching",
        "caching.CompileResultCacheImpl._locator_classes = []",
        "from nncdbg import stats",
        "from nncdbg.stats import compiled, preparation",
        "assert type(compiled.floats._cache).__name__ == 'NullCache'",
        "preparation.NAMES = ('u8',)",
        "stats.prepare(wait=True)",
        "assert stats.summarize(np.arange(5, dtype=np.uint8)).max == 4",
        "print(stats.ready(), stats.failure())",
    )
    assert out == "True None"


FORKS = """
import os, time
from nncdbg.stats import preparation

preparation.prepare()
for _ in range(20):
    child = os.fork()
    if not child:
        raise SystemExit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    time.sleep(0.02)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_is_forked_while_kernels_are_compiled_ends_as_usual() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
