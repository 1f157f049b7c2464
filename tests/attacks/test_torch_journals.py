"""Positions of a PyTorch training made to attack `resume`: it names what is wrong, and changes nothing."""

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg.torch  # noqa: E402
from nncdbg.errors import LoadError, UsageError  # noqa: E402
from nncdbg.terminal.main import main  # noqa: E402
from tests.attacks.journal_changes import by_sql, in_positions  # noqa: E402


class Training:
    """A training with an object of each kind that a checkpoint has a state of."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(2, 3)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        data = torch.utils.data.TensorDataset(torch.randn(8, 2))
        generator = torch.Generator().manual_seed(1)
        loader = torch.utils.data.DataLoader(data, 2, shuffle=True, generator=generator)
        self.others: dict[str, Any] = {
            "scheduler": torch.optim.lr_scheduler.StepLR(self.optimizer, 2),
            "scaler": torch.amp.GradScaler("cpu", init_scale=8.0),
            "loader": nncdbg.torch.track_loader(loader),
        }

    def run(self, steps: int) -> None:
        scaler = self.others["scaler"]
        batches = (batch for _ in range(2) for (batch,) in self.others["loader"])
        for _, batch in zip(range(steps), batches, strict=False):
            self.optimizer.zero_grad()
            scaler.scale(self.model(batch).square().mean()).backward()
            scaler.step(self.optimizer)
            scaler.update()
            self.others["scheduler"].step()

    def state(self) -> str:
        """Return all that `resume` may change."""
        others = [self.others[name].state_dict() for name in ("scheduler", "scaler")]
        others += [self.others["loader"].epoch, self.others["loader"].batches_to_skip]
        generators = [torch.get_rng_state(), random.getstate(), np.random.get_state(), self.optimizer.state]
        return repr(
            copy.deepcopy([self.model.state_dict(), self.optimizer.state_dict(), *others, *generators])
        )


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("intact") / "run.db"
    training = Training()
    with nncdbg.torch.flight_recorder(
        training.model, training.optimizer, path, checkpoint_every=1, **training.others
    ):
        training.run(3)
    return path


def put(*path: Any, value: Any) -> Callable[[Path], None]:
    """Return a change of a position: put a value at a path."""

    def change(position: dict[str, Any]) -> None:
        *outer, last = path
        inner: Any = position
        for each in outer:
            inner = inner.setdefault(each, {}) if isinstance(inner, dict) else inner[each]
        inner[last] = value

    return in_positions(change)


ADAM, STEP = ("optimizers", 0), ("schedulers", 0, "state")
WEIGHT, OPTIONS = (*ADAM, "state", "weight"), (*ADAM, "groups", 0, "options")
PYTHON, NUMPY = ("random", "python", "$tuple"), ("random", "numpy", "$tuple")
OTHER = {"$tensor": "state/bias"}
DAMAGED = "is damaged"

ATTACKS: dict[str, tuple[Any, str]] = {
    # The loader.
    "an epoch of text": (put("loader", "epoch", value="x"), DAMAGED),
    "a negative epoch": (put("loader", "epoch", value=-2), DAMAGED),
    "an epoch of 2^60": (put("loader", "epoch", value=1 << 60), DAMAGED),
    "negative batches": (put("loader", "batches", value=-1), DAMAGED),
    "an infinite number of batches": (put("loader", "batches", value={"$float": "inf"}), DAMAGED),
    "an epoch of the sampler of 2^70": (put("loader", "sampler_epoch", value=1 << 70), DAMAGED),
    "a seed of the sampler of 2^70": (put("loader", "sampler_seed", value=1 << 70), DAMAGED),
    "a seed of the sampler of text": (put("loader", "sampler_seed", value="x"), DAMAGED),
    "a state ahead of text": (put("loader", "ahead", value="x"), DAMAGED),
    "no state of the epoch": (put("loader", "random", value={}), DAMAGED),
    "a generator of text": (put("loader", "generators", value=["x"]), DAMAGED),
    "a generator of another tensor": (put("loader", "generators", value=[OTHER]), DAMAGED),
    "no generator": (put("loader", "generators", value=[]), "1 random generator of its own, and 0"),
    "a loader that is a list": (put("loader", value=[1]), DAMAGED),
    "kept batches of text": (put("batches", value="x"), DAMAGED),
    # Random generators.
    "a random state of another tensor": (put("random", "torch", value=OTHER), DAMAGED),
    "a random state that is missing": (put("random", "torch", value={"$tensor": "none"}), DAMAGED),
    "devices of numbers": (put("random", "devices", value=[1, 2]), DAMAGED),
    "devices that are not here": (
        put("random", "devices", value=[{"$tensor": "random/torch"}] * 99),
        "the random states of 99 devices",
    ),
    "a version of Python's generator": (put(*PYTHON, 0, value=99), DAMAGED),
    "words of Python's generator": (put(*PYTHON, 1, value={"$array": "state/weight"}), DAMAGED),
    "a state of Python's generator of 1 item": (put(*PYTHON, value=[3]), DAMAGED),
    "an unknown generator of NumPy": (put(*NUMPY, 0, value="PCG64"), DAMAGED),
    "a place in NumPy's generator of 10^9": (put(*NUMPY, 2, value=10**9), DAMAGED),
    "a negative place in NumPy's generator": (put(*NUMPY, 2, value=-5), DAMAGED),
    "words of NumPy's generator": (put(*NUMPY, 1, value={"$array": "state/weight"}), DAMAGED),
    # Optimizers.
    "no optimizer": (put("optimizers", value=[]), "it has 0 optimizers, and you passed 1"),
    "optimizers that are text": (put("optimizers", value="Adam"), DAMAGED),
    "an optimizer of another class": (put(*ADAM, "class", value="SGD"), "is Adam, and SGD in the checkpoint"),
    "moments of text": (put(*WEIGHT, value="x"), DAMAGED),
    "a moment of a missing tensor": (put(*WEIGHT, "exp_avg", value={"$tensor": "none"}), DAMAGED),
    "a moment of another shape": (
        put(*WEIGHT, "exp_avg", value=OTHER),
        r"weight has shape \(3, 2\), and its exp_avg has \(3,\)",
    ),
    "groups of numbers": (put(*ADAM, "groups", value=[1]), DAMAGED),
    "no groups": (put(*ADAM, "groups", value=[]), "Adam has 1 groups, and 0 in the checkpoint"),
    "other parameters": (put(*ADAM, "groups", 0, "parameters", value=["x"]), "has other parameters"),
    "parameters as an option": (put(*OPTIONS, "params", value=[1]), "parameters among its options"),
    "a rate of text": (put(*OPTIONS, "lr", value="x"), "lr is a number, and text in the checkpoint"),
    "a rate with 3 elements": (put(*OPTIONS, "lr", value=OTHER), r"and a tensor of shape \(3,\)"),
    "a key of an unknown kind": (put(*OPTIONS, "betas", value={"$set": [[1], [2]]}), DAMAGED),
    # Schedulers and scaler.
    "a scheduler without a state": (put("schedulers", 0, value={"class": "StepLR"}), DAMAGED),
    "a scheduler whose method is a number": (put(*STEP, "step", value=1), "StepLR.step is a method, and a"),
    "a step number of text": (put(*STEP, "last_epoch", value="x"), "StepLR.last_epoch is a number, and text"),
    "rates that are a number": (put(*STEP, "base_lrs", value=1), "StepLR.base_lrs is a list, and a number"),
    "a scaler of a list": (put("scaler", value=[1]), DAMAGED),
    "a scaler without entries": (put("scaler", value={}), "load_state_dict of GradScaler failed: .*empty"),
    "a scaler without its scale": (
        in_positions(lambda position: position["scaler"].pop("scale")),
        "load_state_dict of GradScaler failed: 'scale'; the checkpoint has growth_factor, ",
    ),
    # Documents and rows.
    "a position of 200 levels": (
        put("random", value=json.loads("[" * 200 + "]" * 200)),
        "not as nncdbg writes it",
    ),
    "an unknown special value": (put("scaler", value={"$other": 5}), DAMAGED),
    "pairs that are no pairs": (put("scaler", value={"$items": [[1]]}), DAMAGED),
    "a key that is a list": (put("scaler", value={"$items": [[[1], 2]]}), DAMAGED),
    "a number of text": (put("scaler", "scale", value={"$float": "x"}), DAMAGED),
    "a name of a tensor that is a list": (put("scaler", "scale", value={"$tensor": [1]}), DAMAGED),
    "a step of 2^60": (by_sql(f"UPDATE checkpoints SET step = {1 << 60}"), "damaged|not as nncdbg writes it"),
    "a negative step": (by_sql("UPDATE checkpoints SET step = -1"), "damaged|not as nncdbg writes it"),
    "a step of text": (by_sql("UPDATE checkpoints SET step = 'x'"), "damaged|not as nncdbg writes it"),
    "another weight": (
        by_sql(
            "UPDATE checkpoint_tensors SET hash = (SELECT hash FROM checkpoint_tensors "
            "WHERE name = 'state/bias' LIMIT 1) WHERE name = 'state/weight'"
        ),
        r"weight has shape \(3, 2\), and \(3,\) in the checkpoint",
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_position_is_reported_and_nothing_is_changed(
    attack: str, intact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, message = ATTACKS[attack]
    path = tmp_path / "run.db"
    path.write_bytes(intact.read_bytes())
    change(path)
    training = Training()
    training.run(1)
    before, content = training.state(), path.read_bytes()
    with pytest.raises((LoadError, UsageError), match=message):
        nncdbg.torch.resume(training.model, training.optimizer, f"{path}@2", **training.others)
    assert training.state() == before
    for words in (["runs", str(path)], ["log", str(path)], ["diff", f"{path}#1", f"{intact}#1"]):
        assert main(words) in (0, 1, 3)
    assert "Traceback" not in capsys.readouterr().err
    assert path.read_bytes() == content


def test_more_batches_than_the_loader_has_are_reported(intact: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    path.write_bytes(intact.read_bytes())
    put("loader", "batches", value=10**12)(path)
    training = Training()
    nncdbg.torch.resume(training.model, training.optimizer, f"{path}@2", **training.others)
    with pytest.raises(UsageError, match="after 1000000000000 batches of an epoch, and the loader has fewer"):
        training.run(1)


def test_an_intact_position_is_restored(intact: Path) -> None:
    expected, training = Training(), Training()
    expected.run(2)
    nncdbg.torch.resume(training.model, training.optimizer, f"{intact}@2", **training.others)
    weights = zip(training.model.parameters(), expected.model.parameters(), strict=True)
    assert all(torch.equal(*each) for each in weights)
    assert training.others["scheduler"].last_epoch == expected.others["scheduler"].last_epoch
