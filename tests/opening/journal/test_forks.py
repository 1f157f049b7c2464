"""Forks of a run: with other values, after an edit, and after the run was killed."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nncdbg.journal
from nncdbg.errors import LoadError, NncdbgError, UsageError
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.journal.recording import journaled
from nncdbg.opening.journal.reproduction import reproducing
from nncdbg.opening.programs import open_program
from tests.opening.journal.trainings import TRAININGS, Training, bits, opened_at, run_journaled, written

pytestmark = pytest.mark.usefixtures("forked_processes")

NAMES = [*TRAININGS]
DROPOUT, EVALUATE, SEVERAL, ACCUMULATE = NAMES
ROOT = Path(__file__).parents[3]


def fork(address: str, **fields: object) -> tuple[dict[str, bytes], str]:
    """Run a fork to its end; return the bits of its outputs, and the report of the repeated steps."""
    opened = opened_at(address, **{"fork": True, **fields})
    debugger = opened.debugger(statistics=False)
    with journaled(opened, debugger) as recorder, reproducing(opened, debugger) as reproduction:
        debugger.run()
    assert recorder is not None
    assert recorder.problem is None
    assert not debugger.control.machine.problems
    assert debugger.outputs is not None
    return bits(debugger.outputs), str(reproduction)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("step", [0, 7, 12])
def test_fork_without_changes_repeats_its_parent(name: str, step: int, tmp_path: Path) -> None:
    """N12: the new run has the same bits, and the old run stays."""
    path, training = tmp_path / "run.db", TRAININGS[name]
    whole = run_journaled(training, path, checkpoint_every="5")
    assert whole.outputs is not None
    with nncdbg.journal.open(path) as journal:
        old = journal.run(1), journal.values(1, "l")[1].tolist(), journal.checkpoints(1)
    outputs, report = fork(f"{path}#1@{step}", checkpoint_every="4")
    assert outputs == bits(whole.outputs)
    assert report.startswith(f"steps {step} to {training.steps - 1} have the same results as in run 1")
    with nncdbg.journal.open(path) as journal:
        new = journal.run(2)
        assert (new.parent, new.parent_step, new.status, new.steps) == (1, step, "ended", training.steps)
        assert journal.values(2, "l")[1].tolist() == journal.values(1, "l")[1].tolist()
        assert (journal.run(1), journal.values(1, "l")[1].tolist(), journal.checkpoints(1)) == old


@pytest.mark.parametrize("name", NAMES)
def test_a_fork_is_opened_at_each_step(name: str, tmp_path: Path) -> None:
    path, training = tmp_path / "run.db", TRAININGS[name]
    run_journaled(training, path, checkpoint_every="5")
    outputs, _ = fork(f"{path}@6", changes={"lr": "0.05"}, checkpoint_every="3")
    for step in range(6, training.steps + 1):
        debugger = opened_at(f"{path}#2@{step}").debugger()
        debugger.run()
        assert debugger.outputs is not None
        assert bits(debugger.outputs) == outputs, step
    before = opened_at(f"{path}#2@5").debugger()
    before.run()
    with nncdbg.journal.open(path) as journal:
        assert before.outputs is not None
        assert before.outputs["l"].tolist()[:6] == journal.values(1, "l")[1].tolist()[:6]


def test_a_fork_is_the_run_of_the_changed_program(tmp_path: Path) -> None:
    """A fork at step 0 with another learning rate is the training with this learning rate."""
    training = TRAININGS[DROPOUT]
    run_journaled(training, tmp_path / "run.db")
    outputs, _ = fork(f"{tmp_path / 'run.db'}@0", changes={"lr": "0.125", "momentum": "0.5"})
    other = Training(
        training.text.replace("lr=0.5, momentum=0.9", "lr=0.125, momentum=0.5"), 20, training.inputs
    )
    debugger = run_journaled(other, tmp_path / "other.db")
    assert debugger.outputs is not None
    assert outputs == bits(debugger.outputs)
    with nncdbg.journal.open(tmp_path / "run.db") as journal:
        text = journal.program(2)
        assert text == training.text.replace("lr=0.5, momentum=0.9", "lr=0.125, momentum=0.5")


def test_a_fork_with_another_state_and_input(tmp_path: Path) -> None:
    training, path = TRAININGS[DROPOUT], tmp_path / "run.db"
    run_journaled(training, path)
    outputs, _ = fork(f"{path}@3", changes={"%w": "0.25", "x": "ones"})
    debugger = opened_at(f"{path}#1@3").debugger()
    np.testing.assert_array_equal(opened_at(f"{path}#2@3").debugger().states["w"], np.full((2, 3), 0.25, "f"))
    np.testing.assert_array_equal(opened_at(f"{path}#2@4").debugger().inputs["x"], np.ones((36, 2), "f"))
    debugger.set_value("w", 0.25, ...)
    debugger.run()
    assert debugger.outputs is not None
    assert bits(debugger.outputs) != outputs


def test_the_start_of_a_fork_is_the_start_of_time(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    run_journaled(TRAININGS[DROPOUT], path, checkpoint_every="4")
    fork(f"{path}@6", changes={"lr": "0.05"}, checkpoint_every="4")
    debugger = opened_at(f"{path}#2@6").debugger()
    for verb in (debugger.step_back, debugger.step_back_into, debugger.reverse_step_out):
        with pytest.raises(UsageError, match="run 2 begins here, as a fork") as caught:
            verb()
        assert caught.value.hint == f"open its parent: {path}#1@6"
    later = opened_at(f"{path}#2@11").debugger()
    states = bits(later.states)
    later.reverse_step_out()
    assert later.timeline.tick == 0
    assert bits(later.states) == bits(debugger.states)
    while later.frames[-2].iteration < 11:
        later.step_into()
    assert bits(later.states) == states


TWO_RATES = """#nncdbg 1
opset 18
state %a: f32[2] = [1.0, 2.0]
state %lr: f32[2] = [1.0, 2.0]
graph @train() -> (%l: f32[]) {
  %l: f32[], saved %s = @loss()
  %d_a: f32[2], %d_lr: f32[2] = @loss.backward(1.0, %s)
  %a.1: f32[2] = nncdbg.SGD(%a, %d_a, lr=0.1)
  %lr.1: f32[2] = nncdbg.SGD(%lr, %d_lr, lr=0.2, weight_decay=0.5)
  update %a = %a.1, %lr = %lr.1
  return %l
}
graph @loss() -> (%l: f32[]) {
  %p = Mul(%a, %lr)
  %l: f32[] = ReduceSum(%p, keepdims=0)
  return %l
}
backward @loss.backward of @loss by (%a, %lr)
run @train steps 6
"""

CHANGES = """
lr=0.3            | different values of lr: 0.1 in line 8, 0.2 in line 9
8:lr=0.3          | ok
9:lr=0.3          | ok
%lr=[0, 1]        | ok
%lr=[0, 1, 2]     | has the shape [2], not [3]
weight_decay=0    | ok
weight_decay=x    | --set weight_decay=x: "x" is not a value of an attribute
weight_decay="x"  | the value does not fit
weight_decay=0)   | --set weight_decay=0)
7:lr=1            | no optimizer in line 7 writes lr
beta=1            | no optimizer writes beta
%beta=1           | no optimizer writes beta
a=gone.npy        | gone.npy
a=zeros           | ok
"""


@pytest.mark.parametrize("line", CHANGES.strip().splitlines())
def test_changes_of_a_fork(line: str, tmp_path: Path) -> None:
    change, words = map(str.strip, line.split(" | "))
    path = tmp_path / "run.db"
    run_journaled(Training(TWO_RATES, 6), path)
    name, _, value = change.partition("=")
    if words == "ok":
        fork(f"{path}@2", changes={name: value})
        return
    with pytest.raises(NncdbgError) as caught:
        opened_at(f"{path}@2", fork=True, changes={name: value})
    assert words in str(caught.value)


def test_changes_need_a_fork(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    run_journaled(TRAININGS[ACCUMULATE], path)
    with pytest.raises(UsageError, match="--set is for a fork"):
        opened_at(f"{path}@2", changes={"lr": "1"})
    with pytest.raises(UsageError, match="is not a run in a journal"):
        open_program(RunConfiguration(program=str(path.with_suffix(".nnc")), fork=True))
    with pytest.raises(UsageError, match="run 1 has ended: there is nothing to continue"):
        opened_at(str(path), resume=True)


# -- edits -------------------------------------------------------------------------------------------


def test_an_edit_begins_a_fork(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    opened = written(TRAININGS[DROPOUT], path, checkpoint_every="4")
    debugger = opened.debugger()
    with journaled(opened, debugger):
        debugger.break_at(graph="train", when="$step == 5")
        debugger.run()
        debugger.delete()
        debugger.set_value("w", 2.0, (0, 0))
        debugger.run()
        edited = debugger.outputs
        debugger.timeline.switch(0)
        debugger.run()
    assert edited is not None
    assert debugger.outputs is not None
    with nncdbg.journal.open(path) as journal:
        assert [(run.parent, run.parent_step, run.steps, run.status) for run in journal.runs()] == [
            (None, None, 20, "ended"),
            (1, 5, 20, "ended"),
        ]
        assert [(each.name, each.step) for each in journal.edits(2)] == [("w", 5)]
        assert journal.values(1, "l")[1].tolist() == debugger.outputs["l"].tolist()
        assert journal.values(2, "l")[1].tolist() == edited["l"].tolist()
    for step in (6, 11, 20):
        again = opened_at(f"{path}#2@{step}").debugger()
        again.run()
        assert again.outputs is not None
        assert bits(again.outputs) == bits(edited)
    with pytest.raises(UsageError, match="run 2 begins with an edit in step 5"):
        opened_at(f"{path}#2@5")


def test_a_run_repeated_from_its_start_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    opened = written(TRAININGS[DROPOUT], path, checkpoint_every="4")
    debugger = opened.debugger()
    with journaled(opened, debugger):
        debugger.run()
        debugger.restart()
        debugger.run()
        debugger.step_back_into()
    with nncdbg.journal.open(path) as journal:
        assert [run.status for run in journal.runs()] == ["ended"]
        assert [each.step for each in journal.checkpoints()] == [0, 4, 8, 12, 16, 20]


def test_a_micro_program_that_was_entered_is_no_part_of_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    opened = written(TRAININGS[DROPOUT], path, checkpoint_every="4")
    debugger = opened.debugger()
    with journaled(opened, debugger):
        debugger.break_at(op="SoftmaxCrossEntropyLoss", when="$step == 5")
        debugger.run()
        debugger.step_into(micro=True)
        debugger.delete()
        debugger.run()
    assert debugger.outputs is not None
    again = opened_at(f"{path}@10").debugger()
    again.go_to(0)
    with pytest.raises(UsageError, match="the steps before 8 cannot be computed again from here"):
        again.step_back()
    again.run()
    assert again.outputs is not None
    assert bits(again.outputs) == bits(debugger.outputs)


# -- findings and failures ---------------------------------------------------------------------------


def test_a_nan_is_a_place(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    training = TRAININGS[DROPOUT]
    run_journaled(Training(training.text.replace("lr=0.5", "lr=3e38"), 20, training.inputs), path)
    with nncdbg.journal.open(path) as journal:
        values = journal.values(None, "l")[1]
        first = int(np.flatnonzero(~np.isfinite(values))[0])
        assert np.isnan(values[first + 1 :]).all()
        # The steps after it have a NaN too.
        assert [(each.kind, each.step) for each in journal.events()] == [("nan", first)]
    debugger = opened_at(f"{path}@nan").debugger()
    assert debugger.frames[0].iteration == first
    with nncdbg.journal.open(path) as journal:
        assert first > 0


def test_a_finding_is_an_event(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    training = TRAININGS[DROPOUT]
    opened = written(Training(training.text.replace("lr=0.5", "lr=3e38"), 20, training.inputs), path)
    debugger = opened.debugger()
    with journaled(opened, debugger):
        debugger.catch("nan", "inf")
        stop = debugger.run()
    assert stop.finding is not None
    with nncdbg.journal.open(path) as journal:
        assert [(each.kind, each.step) for each in journal.events()] == [
            (stop.finding.kind, journal.run().steps)
        ]
        assert journal.run().status == "interrupted"
        assert journal.checkpoints()[-1].step == journal.run().steps


# -- kill -9 -----------------------------------------------------------------------------------------

SLOW = """#nncdbg 1
opset 18
state %w: f32[64,64] = RandomNormal(seed=1.0, shape=[64,64])
graph @train(%x: f32[N,64]) -> (%l: f32[]) {
  %l: f32[], saved %s = @loss(%x)
  %d_w: f32[64,64] = @loss.backward(1.0, %s)
  %w.1: f32[64,64] = nncdbg.SGD(%w, %d_w, lr=0.0001)
  update %w = %w.1
  return %l
}
graph @loss(%x: f32[N,64]) -> (%l: f32[]) {
  %d: f32[N,64] = Dropout(%x, 0.25, true)
  %p = MatMul(%d, %w)
  %q = Mul(%p, %p)
  %l: f32[] = ReduceMean(%q, keepdims=0)
  return %l
}
backward @loss.backward of @loss by (%w)
run @train for %x batch 4 epochs 400 shuffle 1
"""


def _killed(tmp_path: Path, until: int) -> Path:
    """Begin a training of 4,000 steps in a process, and kill it after it has written a number of epochs."""
    model, path = tmp_path / "slow.nnc", tmp_path / "run.db"
    model.write_text(SLOW)
    arguments = ["run", str(model), "--input", "x=normal[40,64]", "--seed", "7", "--journal", str(path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "nncdbg", *arguments, "--checkpoint-every", "13"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and _epochs(path) > until:
            break
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode == -signal.SIGKILL, errors.decode()
    return path


def _epochs(path: Path) -> int:
    try:
        with nncdbg.journal.open(path) as journal:
            return journal.run().epochs
    except (LoadError, UsageError):  # The file or its run is not written yet.
        return 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The outputs of the training in one run."""
    path = tmp_path_factory.mktemp("whole") / "slow.nnc"
    path.write_text(SLOW)
    fields: dict[str, Any] = {
        "program": str(path),
        "inputs": {"x": "normal[40,64]"},
        "seed": 7,
    }
    debugger = open_program(RunConfiguration(**fields, given=frozenset(fields))).debugger(statistics=False)
    debugger.run()
    assert debugger.outputs is not None
    return bits(debugger.outputs)


@pytest.mark.parametrize("seed", range(3))
def test_kill_at_a_random_step_and_continue(seed: int, tmp_path: Path, whole: dict[str, bytes]) -> None:
    """A run that was killed continues as a fork from its last checkpoint, with the same bits."""
    path = _killed(tmp_path, random.Random(seed).randrange(1, 60))
    with nncdbg.journal.open(path) as journal:
        lost = journal.run()
        assert lost.status == "lost"
        assert 0 < lost.steps < 4000
        values = journal.values(1, "l")
        assert values[0].tolist() == [*range(lost.steps)]
    outputs, report = fork(str(path), resume=True, fork=False)
    assert outputs == whole
    assert not report or re.search("ha(s|ve) the same results", report)
    with nncdbg.journal.open(path) as journal:
        assert journal.run(1).status == "lost"
        assert journal.values(1, "l")[1].tolist() == values[1].tolist()
        assert journal.run(2).parent == 1
        assert np.array(journal.values(2, "l")[1], np.float32).tobytes() == outputs["l"]


def test_kill_at_epoch_7_and_restart_from_epoch_3(tmp_path: Path, whole: dict[str, bytes]) -> None:
    """N12: the losses are those of the first run bit for bit, and the old branch is still there."""
    path = _killed(tmp_path, 7)
    with nncdbg.journal.open(path) as journal:
        before = journal.values(1, "l")[1].tolist()
        assert len(before) >= 70
    outputs, report = fork(f"{path}@epoch:3")
    assert report.startswith(f"steps 30 to {len(before) - 1} have the same results as in run 1, bit for bit")
    assert outputs == whole
    with nncdbg.journal.open(path) as journal:
        assert journal.values(1, "l")[1].tolist() == before
        assert journal.values(2, "l")[1].tolist()[: len(before)] == before
        assert (journal.run(2).parent, journal.run(2).parent_step) == (1, 30)
