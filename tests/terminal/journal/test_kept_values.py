"""`nncdbg log --values` lists the values that a run keeps, with sizes and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nncdbg import journal
from nncdbg.journal import NewRun

Command = Callable[..., tuple[int, str, str]]

ALL = """
value   type                  codec   steps  first  last  bytes  absolute   relative       rms
%count  i64[]                 exact       3      0    10     24       0.0        0.0       0.0
%w      f32[4,8], f32[16,16]  blocks      3      0    10    160       0.5  0.0833333  0.353553
"""

ONE = """
step  type        codec   bytes  absolute   relative       rms
   0  f32[4,8]    blocks     16       0.5  0.0833333  0.353553
   5  f32[4,8]    blocks     16       0.5  0.0833333  0.353553
  10  f32[16,16]  blocks    128       0.0        0.0       0.0
"""


@pytest.fixture
def kept(tmp_path: Path) -> str:
    """Return a journal with known errors: a block from 0 to 6 has the levels 0, 2, 4 and 6."""
    tensor = np.tile(np.array([0, 0.5, 6, 0.5], np.float32), (4, 2))
    new = NewRun(kind="graph", name="train")
    with journal.open(tmp_path / "run.db", write=True) as file, file.start(new) as run:
        for step in (0, 5, 10):
            run.step(step)
            values = {"%w": np.ones((16, 16), np.float32) if step == 10 else tensor, "%count": np.array(step)}
            run.keep_values(step, values, codec="blocks")
    return "run.db"


def test_the_list_of_all_values(command: Command, kept: str) -> None:
    """N14: the measured error of each value is listed."""
    code, out, err = command("log", kept, "--values")
    assert (code, out) == (0, ALL.lstrip("\n"))
    assert err == "note: 2 rows\nnote: size of the run's values: 184 bytes\n"


@pytest.mark.parametrize("name", ["%w", "w"])
def test_the_steps_of_one_value(command: Command, kept: str, name: str) -> None:
    assert command("log", kept, "--values", name)[:2] == (0, ONE.lstrip("\n"))


def test_values_as_json(command: Command, kept: str) -> None:
    code, out, _ = command("log", kept, "--values", "%count", "--json")
    assert code == 0
    assert json.loads(out) == {
        "columns": ["step", "type", "codec", "bytes", "absolute", "relative", "rms"],
        "rows": [[step, "i64[]", "exact", 8, 0.0, 0.0, 0.0] for step in (0, 5, 10)],
    }


def test_the_log_counts_the_values(command: Command, kept: str) -> None:
    assert "2 values kept (184 bytes) at steps 0, 5, 10\n" in command("log", kept)[1]
    found = json.loads(command("log", kept, "--json")[1])["kept_values"]
    assert len(found) == 6
    assert (found[1]["name"], found[1]["shape"], found[1]["error"]["absolute"]) == ("%w", [4, 8], 0.5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--values", "%v"], 'run 1 keeps no value "%v"'),
        (["--values", "--statistics"], "--statistics cannot be combined with --values"),
        (["--values", "--follow"], "--values cannot be combined with"),
        (["--values", "--track", "w"], "--values cannot be combined with"),
    ],
)
def test_wrong_options_are_errors(command: Command, kept: str, arguments: list[str], words: str) -> None:
    code, out, err = command("log", kept, *arguments)
    assert (code, out) == (2, "")
    assert words in err


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("graph", "hint: run the training with --journal-values PATTERN"),
        ("torch", "for all values of a step, `nncdbg record train --at 'FILE#1@STEP'`"),
    ],
)
def test_a_run_without_values_names_what_to_use(
    command: Command, tmp_path: Path, kind: str, hint: str
) -> None:
    path = tmp_path / "run.db"
    with journal.open(path, write=True) as file, file.start(NewRun(kind=kind, name="train")) as run:
        run.step(0)
    code, _, err = command("log", str(path), "--values")
    assert code == 2
    assert hint in err.replace(str(path), "FILE")
