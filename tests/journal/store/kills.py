"""Kill a training with a journal at random moments, and check what the file holds afterwards.

    python -m tests.journal.store.kills --moments 500 --seed 0

After each kill: the file opens, all committed steps are there with exact values, each tensor of each
checkpoint is exact, and the training restarts from the last checkpoint as a fork, and is killed again.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from nncdbg import journal, summarize
from nncdbg.journal import Journal, NewRun

SIZE = 20_000
KILLS_PER_FILE = 20


def first_state() -> np.ndarray[Any, Any]:
    """Return the state before step 0."""
    return np.zeros(SIZE)


def after(state: np.ndarray[Any, Any], step: int) -> np.ndarray[Any, Any]:
    """Return the state after a step; the random numbers of a step are keyed by its number."""
    return state * 0.9 + np.random.default_rng(step).normal(size=SIZE)


def train(path: Path, report: int) -> None:
    """Train until killed, from the last checkpoint; write the number of committed steps to a pipe."""
    with journal.open(path, write=True) as file:
        last = file.nearest(None, sys.maxsize) if file.runs() else None
        new = NewRun(kind="graph", name="kills")
        if last is None:
            run, step, state = file.start(new), 0, first_state()
        else:
            run, step, state = file.fork(None, last.step, new), last.step, file.read(last).tensors["state/w"]
        start = step
        while True:
            if step % 7 == 0 and step > start:
                run.checkpoint(
                    step, position={"step": step}, tensors={"state/w": state, "first": first_state()}
                )
                run.remove_checkpoint(max(0, step - 70))
            state = after(state, step)
            run.step(step, epoch=step // 100)
            run.value("loss", step, float(state.sum()))
            run.statistics(step, "%w", summarize(state))
            step += 1
            if step % 5 == 0:
                run.flush()
                os.write(report, step.to_bytes(8, "little"))


def kill_at(path: Path, seconds: float) -> int:
    """Start the training, kill it after some seconds, and return the steps that were surely committed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            train(path, writing)
        except BaseException:  # noqa: BLE001  the parent reports that the child ended
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writing)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, f"the training failed before it was killed: {status}"
    with os.fdopen(reading, "rb") as pipe:
        reports = pipe.read()
    return int.from_bytes(reports[-8:], "little")


class Expected:
    """The states and losses of the training without kills, computed once."""

    def __init__(self) -> None:
        self._states = [first_state()]
        self.losses: list[float] = []

    def state(self, step: int) -> np.ndarray[Any, Any]:
        """Return the state before a step."""
        while len(self._states) <= step:
            self._states.append(after(self._states[-1], len(self._states) - 1))
            self.losses.append(float(self._states[-1].sum()))
        return self._states[step]


def check(file: Journal, committed: int, expected: Expected) -> None:
    """Check the last run and all checkpoints of a file; AssertionError if something is missing or wrong."""
    run = file.run()
    assert run.status == "lost", run.status
    assert run.steps >= committed, (run.steps, committed)
    expected.state(run.steps)
    assert file.steps(run)["step"].tolist() == list(range(run.steps))
    # The last step may have been committed before its values.
    complete = max(committed, run.steps - 1)
    if complete:
        steps, losses = file.values(run, "loss")
        assert steps.tolist() == list(range(len(steps)))
        assert len(steps) >= complete
        assert losses.tolist() == expected.losses[: len(steps)]
        measured = file.statistics(run, "%w")["step"].tolist()
        assert set(range(max(0, complete - 1000), complete)) <= set(measured)
    for record in file.checkpoints(run):
        checkpoint = file.read(record)
        assert checkpoint.position == {"step": record.step}
        np.testing.assert_array_equal(checkpoint.tensors["state/w"], expected.state(record.step))
    assert file.sql("SELECT count(*) FROM runs")[1][0][0] == run.number


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a training with a journal at random moments.")
    parser.add_argument("--moments", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=float, default=0.3, help="seconds before a kill, at most")
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    expected = Expected()
    empty = 0
    with tempfile.TemporaryDirectory() as folder:
        for moment in range(arguments.moments):
            path = Path(folder) / f"run{moment // KILLS_PER_FILE}.db"
            # Half of the kills are early, when files are created and the log is recovered.
            seconds = random.uniform(0, arguments.longest / (1 if moment % 2 else 20))
            committed = kill_at(path, seconds)
            if not path.exists() or not path.stat().st_size:
                assert not committed
                empty += 1
                continue
            with journal.open(path, write=True) as file:
                if file.runs():
                    check(file, committed, expected)
                else:
                    assert not committed
                    empty += 1
    print(f"{arguments.moments} kills, {empty} before a run was committed: all committed steps are exact")
    return 0


if __name__ == "__main__":
    sys.exit(main())
