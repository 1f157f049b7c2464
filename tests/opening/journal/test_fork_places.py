"""Where a fork begins, with which program, and what a failed one leaves; errors of the journal."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nncdbg
import nncdbg.journal
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.terminal.main import main
from tests.opening.journal.trainings import opened_at

TRAIN = """#nncdbg 1
opset 18
state %w: f32[2] = [1.0, 2.0]
state %n: i64[] = 0
graph @train() -> (%l: f32[]) {
  %p: f32[2] = Mul(%w, %w)
  %l: f32[] = ReduceMean(%p, keepdims=0)
  %w.1: f32[2] = nncdbg.SGD(%w, %w, lr=0.5)
  %n.1: i64[] = Add(%n, 1)
  update %w = %w.1, %n = %n.1
  return %l
}
run @train steps 6
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A journal with one run."""
    (tmp_path / "train.nnc").write_text(TRAIN)
    assert main(["run", str(tmp_path / "train.nnc"), "--journal", str(tmp_path / "run.db")]) == 0
    return tmp_path / "run.db"


def _parents(path: Path) -> list[tuple[int | None, int | None]]:
    with nncdbg.journal.open(path) as journal:
        return [(each.parent, each.parent_step) for each in journal.runs()]


def test_a_fork_without_a_run_is_a_fork_of_the_root(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"{run}@2", "--fork", "--set", "lr=0.25"]) == 0
    assert "note: fork of run 1 at step 2\n" in capsys.readouterr().err
    assert main(["run", f"{run}@3", "--fork", "--set", "w=ones"]) == 0
    assert "note: fork of run 1 at step 3\n" in capsys.readouterr().err
    assert main(["run", f"{run}#2@4", "--fork"]) == 0
    assert "note: fork of run 2 (lr=0.25) at step 4\n" in capsys.readouterr().err
    assert _parents(run) == [(None, None), (1, 2), (1, 3), (2, 4)]


def test_a_scalar_state_is_set_in_a_fork(run: Path) -> None:
    debugger = opened_at(f"{run}@2", fork=True, changes={"n": "40"}).debugger()
    assert debugger.states["n"].shape == ()
    assert main(["run", f"{run}@2", "--fork", "--set", "n=40"]) == 0
    assert opened_at(f"{run}#2@6").debugger().states["n"] == 44


def test_the_seed_of_a_scalar_gradient_is_a_scalar() -> None:
    """The vector of `vjp` and `jvp` has the shape of the value, also without axes."""
    program = nncdbg.parse(
        "#nncdbg 1\nopset 18\ngraph @main(%x: f32[3]) -> (%y: f32[]) {\n"
        "  %y: f32[] = ReduceSum(%x, keepdims=0)\n  return %y\n}\n"
    )
    debugger = nncdbg.Debugger(program, inputs={"x": np.ones(3, np.float32)})
    debugger.run()
    gradient = debugger.evaluate("vjp(%y, %x, 2.0)")
    np.testing.assert_array_equal(gradient, np.full(3, 2, np.float32))


EDITS = {
    "another op": (("Mul(%w, %w)", "Sub(%w, %w)"), ""),
    "another rate": (("lr=0.5", "lr=0.125"), ""),
    "a state of another shape": (
        ("%n: i64[] = 0", "%n: i64[1] = [0]"),
        "%n is i64[] in the run, and i64[1] in the program",
    ),
    "a state of another type": (("%n: i64[] = 0", "%n: i32[] = 0"), "%n is i64[] in the run"),
    "another name of a state": (("%n", "%count"), "%n is only in the run; %count is not in the run"),
    "a shorter run": (("steps 6", "steps 2"), "not in its first `run` line"),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_fork_runs_an_edited_program(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (before, after), message = EDITS[name]
    edited = run.with_name("edited.nnc")
    edited.write_text(TRAIN.replace(before, after))
    code = main(["run", f"{run}@2", "--fork", "--program", str(edited)])
    errors = capsys.readouterr().err
    if message:
        assert (code, message in errors) == (2, True), errors
        assert _parents(run) == [(None, None)]
        return
    assert code == 0, errors
    with nncdbg.journal.open(run) as journal:
        old, new = (journal.values(number, "l")[1] for number in (1, 2))
        assert after in (journal.program(2) or "")
    np.testing.assert_array_equal(new[:2], old[:2])
    whole = np.zeros(6, np.float32)
    if name == "another rate":
        w = opened_at(f"{run}#1@2").debugger().states["w"]
        for step in range(2, 6):
            whole[step] = (w * w).mean()
            w = w - np.float32(0.125) * w
    np.testing.assert_array_equal(new[2:], whole[2:])
    assert opened_at(f"{run}#2@6").debugger().states["n"] == 6


def test_an_edited_program_needs_a_fork(run: Path) -> None:
    with pytest.raises(UsageError, match="--program is for a fork"):
        opened_at(f"{run}@2", fork_program=str(run.with_name("train.nnc")))


def test_a_failed_fork_leaves_no_run(run: Path) -> None:
    broken = run.with_name("broken.nnc")
    head = "graph @train() -> (%l: f32[]) {\n"
    index = "  %n2: i64[1] = Reshape(%n, [1])\n  %k: i64[1] = Add(%n2, 5)\n"
    broken.write_text(TRAIN.replace("Mul(%w, %w)", "Reshape(%w, %k)").replace(head, head + index))
    content = nncdbg.journal.open(run)
    tensors = content.sql("SELECT count(*), sum(bytes) FROM blobs")
    content.close()
    assert main(["run", f"{run}@2", "--fork", "--program", str(broken)]) == 4
    assert main(["run", f"{run}@2", "--fork", "--set", "w=[1, 2, 3]"]) == 2
    assert main(["run", f"{run}@9", "--fork"]) == 2
    assert _parents(run) == [(None, None)]
    with nncdbg.journal.open(run) as journal:
        assert journal.sql("SELECT count(*), sum(bytes) FROM blobs") == tensors
        assert journal.sql("SELECT count(*) FROM entries")[1] == [(0,)]


# -- errors of the journal ---------------------------------------------------------------------------

LONG = (
    TRAIN.replace("run @train steps 6", "run @train steps 300")
    .replace("lr=0.5", "lr=0.0")
    .replace("state %w: f32[2] = [1.0, 2.0]", "state %w: f32[20000] = RandomNormal(shape=[20000])")
    .replace("f32[2]", "f32[20000]")
    .replace("Mul(%w, %w)", "RandomNormal(shape=[20000])")
    .replace("nncdbg.SGD(%w, %w, lr=0.0)", "Add(%p, 0.0)")
)


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))


@pytest.mark.parametrize("action", ["warn", "stop"])
def test_a_full_disk_is_reported_when_it_happens(action: str, tmp_path: Path) -> None:
    (tmp_path / "long.nnc").write_text(LONG)
    command = [sys.executable, "-m", "nncdbg.terminal.main", "run", "long.nnc", "--journal", "run.db"]
    command += ["--checkpoint-every", "1", "--on-journal-error", action]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, preexec_fn=_limited
    )
    first, *_, last = [line for line in done.stderr.splitlines() if line.startswith(("note", "error"))]
    rest = "the run stops" if action == "stop" else "the run continues without its journal"
    assert first.startswith("note: cannot write the journal run.db: ")
    assert first.endswith(f"; {rest}")
    assert last.startswith("error: cannot write the journal run.db: ")
    assert done.returncode == 4
    assert ("%l f32[300]" in done.stdout) == (action == "warn")
    with nncdbg.journal.open(tmp_path / "run.db") as journal:
        assert 0 < journal.run().steps < 300
        assert journal.run().status == "lost"


def test_nncdbg_run_raises_the_error_of_a_journal_that_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nncdbg.errors import RunError
    from nncdbg.journal import RunWriter

    def full(*_: object, **__: object) -> None:
        raise RunError("cannot write the journal: the disk is full")

    (tmp_path / "train.nnc").write_text(TRAIN)
    monkeypatch.setattr(RunWriter, "step", full)
    for action in ("warn", "stop"):
        with pytest.raises(NncdbgError, match="the disk is full"):
            nncdbg.run(str(tmp_path / "train.nnc"), journal=str(tmp_path / "run.db"), on_journal_error=action)
