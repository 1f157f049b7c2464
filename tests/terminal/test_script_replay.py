"""T15: sessions at the prompts of scripts are recorded, and replayed by running the script again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nncdbg.commands.recording.entries import read_recording
from nncdbg.commands.recording.results import RecordedResult
from nncdbg.commands.recording.script import EDITOR

pytestmark = pytest.mark.usefixtures("forked_processes")

EXAMPLES = Path(__file__).parents[2] / "examples"
ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys
import numpy as np
import nncdbg

scale = float(sys.argv[1])
for number in range(2):
    debugger = nncdbg.Debugger("model.nnc", {"x": scale * np.ones((2, 4), np.float32)})
    nncdbg.breakpoint()
    print("ran", debugger.run().reason)
print("done")
"""

TYPED = (
    "next\nrecord r.log\np %h\nset %h[0, 0] = 3\nback\nbreak Softmax\ncontinue\nstats\ndelete 1\n"
    "continue\np %x\nnote two\ncontinue\n"
)

Ran = subprocess.CompletedProcess[str]
Run = Callable[..., Ran]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs Python in a new folder with a script and a model."""
    shutil.copy(EXAMPLES / "first_steps.nnc", tmp_path / "model.nnc")
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def python(*arguments: str, typed: str = "") -> Ran:
        words = [sys.executable, *arguments]
        return subprocess.run(
            words, cwd=tmp_path, env=environment, input=typed, capture_output=True, text=True, timeout=600
        )

    return python


def replay(run: Run, *more: str, typed: str = "") -> Ran:
    return run("-m", "nncdbg", "replay", "r.log", "--allow-python", *more, typed=typed)


def test_a_session_of_a_script_with_breakpoint_replays(run: Run, tmp_path: Path) -> None:
    """T15: `nncdbg replay` reruns the script with its arguments; each prompt gets the recorded commands."""
    recorded = run("script.py", "2.0", typed=TYPED)
    assert recorded.stdout.endswith("done\n"), recorded.stderr
    recording = read_recording(str(tmp_path / "r.log"))
    assert recording.closed
    script = recording.setup.script
    assert script is not None
    assert (script.file, script.module, script.arguments) == ("script.py", False, ["2.0"])
    found = replay(run)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.endswith("done\nreplayed 12 commands: 4 stops and 5 results are the same\n")
    assert "note: the script runs again: python script.py 2.0" in found.stderr
    assert found.stderr.count("note:") == 1


def test_a_replay_of_a_script_needs_consent(run: Run) -> None:
    run("script.py", "2.0", typed=TYPED)
    found = run("-m", "nncdbg", "replay", "r.log")
    assert found.returncode == 2
    assert "the recording loads the Python code of script.py" in found.stderr
    assert "ran" not in found.stdout


def test_a_changed_script_is_reported_before_the_first_difference(run: Run, tmp_path: Path) -> None:
    run("script.py", "2.0", typed=TYPED)
    (tmp_path / "script.py").write_text(SCRIPT.replace("scale *", "(scale + number) *"))
    found = replay(run)
    assert found.returncode == 1
    assert "note: the file script.py has changed since the recording" in found.stderr
    text = found.stdout[found.stdout.index("the replay differs") :]
    assert text.startswith("the replay differs at command 9 of 12, `continue`:\n  recorded: %x f32[2,4] [[2.")
    assert "done" not in found.stdout, "the script ends at the difference"


def test_a_script_that_opens_no_prompt_is_a_difference(run: Run, tmp_path: Path) -> None:
    run("script.py", "2.0", typed=TYPED)
    (tmp_path / "script.py").write_text("print('nothing')\n")
    found = replay(run)
    assert found.returncode == 1
    assert "the script ended after 0 of 12 commands" in found.stdout
    (tmp_path / "script.py").write_text("raise ValueError('broken')\n")
    found = replay(run)
    assert found.returncode == 1
    assert "ValueError: broken" in found.stderr


def test_a_replay_of_a_script_continues_at_its_prompt(run: Run) -> None:
    run("script.py", "2.0", typed=TYPED)
    found = replay(run, "--to", "3", typed="p 1000 + 1\ncontinue\ncontinue\ncontinue\n")
    assert found.returncode == 0, found.stderr
    assert "replayed 3 commands: 1 stop and 2 results are the same" in found.stdout
    assert "\n1001\n" in found.stdout or "(nncdbg) 1001\n" in found.stdout
    assert found.stdout.endswith("done\n")


def test_a_module_is_run_again_as_a_module(run: Run, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    shutil.copy(tmp_path / "script.py", tmp_path / "package" / "tool.py")
    run("-m", "package.tool", "2.0", typed=TYPED)
    script = read_recording(str(tmp_path / "r.log")).setup.script
    assert script is not None
    assert (script.file, script.module) == ("package.tool", True)
    assert replay(run).returncode == 0


def test_a_session_of_an_attached_editor_is_refused(run: Run, tmp_path: Path) -> None:
    run("script.py", "2.0", typed=TYPED)
    first, *rest = (tmp_path / "r.log").read_text().splitlines(keepends=True)
    header = json.loads(first)
    header["setup"]["script"]["opened_by"] = EDITOR
    (tmp_path / "r.log").write_text(f"{json.dumps(header)}\n" + "".join(rest))
    found = replay(run)
    assert found.returncode == 2
    assert "the session on script.py cannot be replayed: an editor was attached" in found.stderr


TRAINING = (
    "break aten.tanh if $step == 2\ncontinue\nwhere\np max($out)\nnote a look\nstats\nback\nnext\ncontinue\n"
)


@pytest.mark.parametrize("history", [True, False])
def test_a_live_training_replays(run: Run, tmp_path: Path, history: bool) -> None:
    """T15: a session of `nncdbg debug` reruns the training under the same commands."""
    pytest.importorskip("torch")
    shutil.copy(EXAMPLES / "torch_training.py", tmp_path / "train.py")
    words = ["-m", "nncdbg", "debug", *(["--history"] if history else []), "--record", "r.log", "train.py"]
    recorded = run(*words, typed=TRAINING + "quit\n")
    assert recorded.returncode == 0, recorded.stderr
    found = replay(run)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "stops and 4 results are the same" in found.stdout
    results = [
        event.text
        for each in read_recording(str(tmp_path / "r.log")).commands
        for event in each.events
        if isinstance(event, RecordedResult)
    ]
    assert results[1].startswith("step 2, forward\n"), "`where` of a script is compared too"
    changed = (tmp_path / "train.py").read_text().replace("view + 0.1", "view + 0.2")
    (tmp_path / "train.py").write_text(changed)
    found = replay(run)
    assert found.returncode == 1
    assert "the file train.py has changed since the recording" in found.stderr


def test_options_of_debug_are_part_of_its_recording(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    shutil.copy(EXAMPLES / "torch_training.py", tmp_path / "train.py")
    (tmp_path / "first.cmd").write_text("p 2 + 3\n")
    words = ["-m", "nncdbg", "debug", "--break", "aten.tanh", "-x", "first.cmd", "--record", "r.log"]
    recorded = run(*words, "train.py", typed="stats\ncontinue\nquit\n")
    assert recorded.returncode == 0, recorded.stderr
    found = replay(run)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.startswith("Breakpoint 1: op aten.tanh\n(nncdbg) source first.cmd\n+p 2 + 3\n5\n")
    (tmp_path / "first.cmd").write_text("p 2 + 4\n")
    assert "the file first.cmd has changed since the recording" in replay(run).stderr
    again = run(*words, "train.py", typed="quit\n")
    assert again.returncode == 2
    assert "the recording r.log already exists" in again.stderr
