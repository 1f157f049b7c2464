"""A training that continues from a checkpoint of its journal has the same bits."""

import re
import subprocess
import sys
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch.utils.data import DataLoader, Sampler  # noqa: E402

import nncdbg.journal  # noqa: E402
from tests.torch.journal_trainings import (  # noqa: E402
    BATCH,
    CASES,
    SAMPLES,
    Case,
    Noisy,
    shuffled,
    train,
)

pytestmark = pytest.mark.usefixtures("forked_processes")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_losses_and_parameters_are_equal_after_a_restart(case, tmp_path):
    """N12: restart from any epoch and step; losses are those of the first run, which stays."""
    path = tmp_path / "run.db"
    plain = train(case, path, record=False)
    whole = train(case, path, checkpoint_every=1)
    assert whole.same_as(plain), "recording changes the training"
    with nncdbg.journal.open(path) as journal:
        steps = [each.step for each in journal.checkpoints(1)][: len(whole.losses)]
    assert steps == [*range(len(whole.losses))]
    for step in (0, 1, 4, len(steps) // 2, steps[-1]):
        continued = train(case, path, seed=9, at=f"{path}#1@{step}")
        assert continued.first_step == step
        assert continued.same_as(whole), f"differs after step {step}"
    with nncdbg.journal.open(path) as journal:
        assert [(run.parent, run.parent_step) for run in journal.runs()][:3] == [(None, None), (1, 0), (1, 1)]
        _, first = journal.values(1, "loss")
        for run in journal.runs():
            assert journal.values(run, "loss")[1].tobytes() == first.tobytes()


def test_restart_between_checkpoints_begins_at_the_one_before(tmp_path):
    path = tmp_path / "run.db"
    case = CASES["dropout, shuffle, AdamW, OneCycleLR"]
    whole = train(case, path, checkpoint_every=4)
    continued = train(case, path, seed=5, at=f"{path}@7")
    assert continued.first_step == 4
    assert continued.same_as(whole)


class Alternating(Sampler):
    """A sampler with a state: its order changes with each epoch."""

    def __init__(self):
        self.turn = 0

    def __iter__(self):
        self.turn += 1
        return iter(range(SAMPLES) if self.turn % 2 else range(SAMPLES)[::-1])

    def __len__(self):
        return SAMPLES


@pytest.mark.parametrize(
    ("loader", "note"),
    [
        (partial(shuffled, num_workers=1, persistent_workers=True), "the workers persist over epochs"),
        (partial(DataLoader, Noisy(), BATCH, sampler=Alternating()), "of Alternating, only .* not turn"),
        (shuffled, None),
    ],
)
def test_restart_reports_loaders_with_other_states(loader, note, tmp_path, capsys):
    case = Case(loader=loader)
    path = tmp_path / "run.db"
    train(case, path, checkpoint_every=1)
    for step in (2, 7):
        capsys.readouterr()
        train(case, path, at=f"{path}#1@{step}")
        printed = " ".join(capsys.readouterr().err.split())
        found = re.findall("the following batches may differ: (.*)", printed)
        if step == 2 or note is None:
            assert not found
        else:
            assert re.match(note, found[0])


def test_restart_at_an_epoch(tmp_path):
    path = tmp_path / "run.db"
    case = CASES["2 workers"]
    whole = train(case, path, checkpoint_every="1epochs")
    continued = train(case, path, seed=5, at=f"{path}@epoch:2")
    assert continued.first_step == 10
    assert continued.same_as(whole)


KILLED = """
import os, sys
from tests.torch.journal_trainings import CASES, train
import nncdbg.torch
import torch
torch.set_num_threads(1)
case = CASES[sys.argv[2]]
original = nncdbg.torch.flight_recorder
steps = []
def recorder(net, optimizer, *arguments, **options):
    def kill(*_):
        steps.append(1)
        if len(steps) == 9:
            os.kill(os.getpid(), 9)
    optimizer.register_step_post_hook(kill)
    return original(net, optimizer, *arguments, **options)
nncdbg.torch.flight_recorder = recorder
train(case, sys.argv[1], checkpoint_every=1)
"""


def test_restart_after_kill(tmp_path):
    """A run that kill -9 ended continues from its last checkpoint with the same bits."""
    path, name = tmp_path / "run.db", "2 workers"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), name], capture_output=True, check=False)
    assert done.returncode == -9, done.stderr.decode()
    whole = train(CASES[name], tmp_path / "other.db", record=False)
    with nncdbg.journal.open(path) as journal:
        assert journal.run().status == "lost"
        assert journal.checkpoints()
    continued = train(CASES[name], path, seed=9, at=str(path))
    assert 0 <= continued.first_step <= 9
    assert continued.same_as(whole)


SEEDED = """
import random
import nncdbg.torch
random.seed(0)
before = random.getstate()
nncdbg.torch.{name}
assert random.getstate() == before
"""


@pytest.mark.parametrize("name", ["flight_recorder", "watch"])
def test_first_use_leaves_random_generators_as_they_are(name):
    done = subprocess.run([sys.executable, "-c", SEEDED.format(name=name)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
