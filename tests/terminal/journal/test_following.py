"""`nncdbg log --follow`: the log of a run while another process writes it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest

pytestmark = pytest.mark.usefixtures("forked_processes")

WRITER = """
import os, sys, time
import nncdbg.journal
from nncdbg.journal import NewRun

with nncdbg.journal.open("run.db", write=True) as journal:
    if "--wait" in sys.argv:
        time.sleep(1)
    run = journal.start(NewRun(kind="graph", name="train_mlp"))
    for step in range(int(sys.argv[1])):
        run.value("loss", step, 1 / (step + 1))
        run.step(step, epoch=0, seconds=0.1)
        if step == 3:
            run.event("nan", step, "%loss has 1 NaN")
            run.note("look here", step)
            run.flush()
        time.sleep(0.1)
    run.flush()
    while "--until-told" in sys.argv and not os.path.exists("end"):
        time.sleep(0.05)
    if "--vanish" in sys.argv:
        os._exit(9)
    run.end("ended")
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def writer(tmp_path: Path) -> Start:
    """`writer(steps, *options)` starts a process that writes run.db, and waits for the file.

    With ``--until-told``, the run continues until the file ``end`` exists: following it may begin late.
    """

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", WRITER, *arguments], cwd=tmp_path, text=True)
        deadline = time.monotonic() + 60
        while not (tmp_path / "run.db").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        return process

    return start


def _follow(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "nncdbg", "log", "run.db", "--follow", *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True)


def test_a_pipe_gets_each_step_once_until_the_run_ends(writer: Start, tmp_path: Path) -> None:
    process = writer("25", "--wait")
    out, err = _follow(tmp_path).communicate(timeout=600)
    assert process.wait() == 0
    lines = out.splitlines()
    steps = [line for line in lines if "loss" in line and line.startswith("step")]
    assert [line.split()[1] for line in steps if "has" not in line] == [str(step) for step in range(25)]
    assert steps[1] == "step 1  loss 0.5"
    assert lines.count("step 3  event: nan  %loss has 1 NaN") == 1
    assert lines.count("step 3  note: look here") == 1
    assert lines[-1] == "run 1 ended after 25 steps"
    assert "Traceback" not in err


def test_following_ends_when_the_process_of_the_run_is_gone(writer: Start, tmp_path: Path) -> None:
    process = writer("12", "--vanish", "--until-told")
    following = _follow(tmp_path)
    assert following.stdout is not None
    assert following.stdout.readline().startswith("step 0")
    (tmp_path / "end").touch()
    process.wait()
    out, _ = following.communicate(timeout=600)
    assert following.returncode == 0
    assert out.splitlines()[-1] == "run 1 lost after 12 steps"


def test_ctrl_c_ends_following_and_not_the_run(writer: Start, tmp_path: Path) -> None:
    process = writer("3", "--until-told")
    following = _follow(tmp_path)
    assert following.stdout is not None
    assert following.stdout.readline().startswith("step 0")
    following.send_signal(signal.SIGINT)
    out, err = following.communicate(timeout=600)
    assert (following.returncode, err) == (0, "note: stopped following; run 1 is still running\n")
    assert "ended" not in out
    (tmp_path / "end").touch()
    assert process.wait() == 0


def test_a_terminal_shows_the_log_of_the_moment_and_at_last_the_whole(writer: Start, tmp_path: Path) -> None:
    process = writer("30", "--until-told")
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    child = pexpect.spawn(
        sys.executable,
        ["-m", "nncdbg", "log", "run.db", "--follow"],
        cwd=tmp_path,
        env=environment,
        dimensions=(30, 80),
        encoding="utf-8",
    )
    child.expect("running", timeout=600)
    child.expect("Ctrl-C stops following", timeout=600)
    (tmp_path / "end").touch()
    child.expect(pexpect.EOF, timeout=600)
    child.close()
    assert process.wait() == 0
    assert child.exitstatus == 0
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", child.before)
    assert re.search(r"ended, 30 steps", shown)
    assert "Ctrl-C stops following" not in shown.rpartition("ended, 30 steps")[2]


def test_ctrl_c_at_a_terminal_leaves_the_log_on_the_screen(writer: Start, tmp_path: Path) -> None:
    process = writer("3", "--until-told")
    child = pexpect.spawn(
        sys.executable,
        ["-m", "nncdbg", "log", "run.db", "--follow"],
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm-256color"},
        dimensions=(30, 80),
        encoding="utf-8",
    )
    child.expect("Ctrl-C stops following", timeout=600)
    child.sendintr()
    child.expect(pexpect.EOF, timeout=600)
    child.close()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", child.before)
    assert child.exitstatus == 0
    assert re.search(r"run 1 of run\.db: train_mlp\n  running, \d+ steps?;", shown)
    assert shown.rstrip().endswith("note: stopped following; run 1 is still running")
    (tmp_path / "end").touch()
    assert process.wait() == 0
