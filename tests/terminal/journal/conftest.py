"""A journal of a night: a run that becomes NaN, forks of it, and the run of a script."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from nncdbg import journal
from nncdbg.journal import NewRun, RunWriter

PROGRAM = """#nncdbg 1
opset 18

graph @main(%x: f32[2]) -> (%y: f32[2]) {
  %y = Mul(%x, 0.5)
  return %y
}
"""


@pytest.fixture
def overnight(tmp_path: Path) -> str:
    """The name of the journal in the folder of `command`.

    | run | name      | steps   | what happens                                                     |
    |-----|-----------|---------|------------------------------------------------------------------|
    | 1   | train_mlp | 0-99    | loss and acc are NaN from step 80; 2 epochs, checkpoints each 20 |
    | 2   | train_mlp | 60-99   | fork of 1 at 60, with half the learning rate                     |
    | 3   | train_mlp | 80-84   | fork of 2 at 80, interrupted                                     |
    | 4   | train.py  | 0       | a script, without checkpoints                                    |
    """
    with journal.open(tmp_path / "run.db", write=True) as written:
        one = NewRun(
            kind="graph",
            name="train_mlp",
            program=PROGRAM,
            configuration={"lr": 0.1, "batch": 32},
            versions={"nncdbg": "0.1.0"},
            seed=0,
            command=["nncdbg", "run", "train_mlp.nnc", "--journal", "run.db"],
        )
        with written.start(one) as run:
            _train(run, 0, 100, rate=0.1, bad=80)
            run.note("is the learning rate too high?", 12)
            run.note("first try")
            run.edit("lr", 40, "0.05")
            run.command("set %lr = 0.05", 40)
            run.end("failed")
        two = NewRun(
            kind="graph",
            name="train_mlp",
            program=PROGRAM.replace("0.5", "0.25"),
            configuration={"lr": 0.05, "batch": 32},
            versions={"nncdbg": "0.1.0"},
            seed=0,
        )
        with written.fork(1, 60, two) as run:
            _train(run, 60, 100, rate=0.05)
        with written.fork(2, 80, two) as run:
            _train(run, 80, 85, rate=0.05)
            run.end("interrupted")
        with written.start(NewRun(kind="torch", name="train.py")) as run:
            run.value("loss", 0, 0.5)
            run.step(0)
    return "run.db"


def _train(run: RunWriter, first: int, last: int, *, rate: float, bad: int | None = None) -> None:
    """Write steps: the loss is ``2 * exp(-rate * step)`` in f32, and NaN from step `bad`."""
    for step in range(first, last):
        if step % 20 == 0:
            weight = np.full((8, 10), math.exp(-rate * step), np.float32)
            tensors = {"state/w": weight, "random/key": np.array([step, 1], np.uint64)}
            run.checkpoint(step, epoch=step // 50, position={"step": step}, tensors=tensors)
        if step == bad:
            run.event("nan", step, "%loss has 1 NaN, from Log at line 12")
        loss = math.nan if bad is not None and step >= bad else float(np.float32(2 * math.exp(-rate * step)))
        run.value("loss", step, loss)
        run.value("acc", step, 1 - loss / 4)
        if step % 50 == 49:
            run.value("acc", step, 0.9 - loss / 4, part="test")
        run.step(step, epoch=step // 50, seconds=0.25)
