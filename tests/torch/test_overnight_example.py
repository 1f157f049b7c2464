"""The example of a journal: a NaN in the night is found, opened, fixed and compared in five commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

import nncdbg.journal  # noqa: E402

pytestmark = pytest.mark.usefixtures("forked_processes")

ROOT = Path(__file__).parents[2]
STEP = 380
"""The step in which the NaN originates."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the first and the fourth command were executed."""
    root = tmp_path_factory.mktemp("overnight")
    (root / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "overnight.py", root / "examples")
    code, _, error = executed(root, sys.executable, "examples/overnight.py")
    assert code == 1
    assert f"step {STEP}: loss has 1 NaN of 1" in error
    code, _, error = executed(
        root, sys.executable, "examples/overnight.py", "--resume", f"run.db@{STEP}", "--epsilon", "1e-6"
    )
    assert code == 0, error
    return root


def executed(folder: Path, *command: str) -> tuple[int, str, str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    return done.returncode, done.stdout, done.stderr


def nncdbg_command(folder: Path, *arguments: str) -> tuple[int, str, str]:
    return executed(folder, sys.executable, "-m", "nncdbg", *arguments)


def test_the_log_names_the_step(folder: Path) -> None:
    code, out, _ = nncdbg_command(folder, "log", "run.db#1")
    assert code == 0
    assert f"step {STEP}  nan" in out
    assert f"from @{STEP}" in out


def test_the_step_opens_and_why_names_the_division(folder: Path) -> None:
    commands = ("catch nan", "continue", "why", "quit")
    typed = [each for command in commands for each in ("-ex", command)]
    code, out, error = nncdbg_command(folder, "run.db#1@nan", *typed)
    assert code == 0, error
    assert "the first NaN is in %div: aten.div.Tensor produced it from operands without NaN" in out
    assert "cause: zero divided by zero" in out
    assert "in Classifier.forward, examples/overnight.py:31, called from <module>" in out


def test_the_fork_continues_with_the_fix(folder: Path) -> None:
    with nncdbg.journal.open(folder / "run.db") as journal:
        first, fork = journal.runs()
        assert (first.status, first.steps) == ("failed", STEP + 1)
        assert (fork.parent, fork.parent_step, fork.status, fork.steps) == (1, STEP, "ended", 600)
        _, losses = journal.values(fork, "loss")
        assert len(losses) == 600
        assert bool((losses < 2).all())
        assert [event.kind for event in journal.events(fork)] == []


def test_the_runs_differ_from_that_step(folder: Path) -> None:
    code, out, _ = nncdbg_command(folder, "diff", "run.db#1", "run.db#2")
    assert code == 1
    assert out.startswith(f"the tracks differ from step {STEP} on")
    assert f"the states are equal at the start of step {STEP}" in out


def test_another_step_of_the_run_is_re_created(folder: Path) -> None:
    """N12: step 360, whose checkpoint is that of step 300, opens as the step of the NaN does."""
    code, _, error = nncdbg_command(folder, "record", "examples/overnight.py", "--at", "run.db#1@360")
    assert code == 0, error
    assert "note: the losses of the steps 300 to 360 are those of run 1 of run.db, bit for bit" in error
    code, out, _ = nncdbg_command(folder, "watch", "run.db#1@360")
    assert code == 0, out
    with nncdbg.journal.open(folder / "run.db") as journal:
        assert len(journal.runs()) == 2
