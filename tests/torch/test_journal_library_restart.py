"""Trainings of transformers and Accelerate that continue at a checkpoint, with the same bits."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import numpy as np  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import Dataset  # noqa: E402

import nncdbg.journal  # noqa: E402
import nncdbg.torch  # noqa: E402
from nncdbg.errors import UsageError  # noqa: E402
from nncdbg.torch.journal.recreation import RecreatedStepRecorder, recreation_of  # noqa: E402
from nncdbg.torch.script import record_script  # noqa: E402
from tests.torch.steps.training import same_bits  # noqa: E402

EPOCHS, BATCH, SAMPLES = 3, 4, 24


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Noisy(Dataset):
    """Samples with noise of all three random generators, as augmentations of a user draw it."""

    def __init__(self, samples):
        self.x = torch.randn(samples, 6, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = (self.x[index] + 0.1 * torch.randn(6) + 0.1 * random.random() + 0.1 * np.random.rand()).float()
        return {"x": x, "labels": x.sum()[None]}


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.4), nn.Linear(8, 1))

    def forward(self, x=None, labels=None):
        return {"loss": torch.nn.functional.mse_loss(self.net(x), labels)}


@dataclass
class Run:
    """A training that has ended: losses of its micro batches, entries of its log, and its states."""

    losses: list[Any] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)
    states: dict[str, Any] = field(default_factory=dict)

    def end(self, model, optimizer):
        self.states = dict(model.state_dict())
        for number, state in optimizer.state_dict()["state"].items():
            self.states |= {f"{number}.{key}": each for key, each in state.items() if torch.is_tensor(each)}
        return self


def check_same_bits(path, whole, continued, step):
    """Check that a continued run has the losses, learning rates and states of the whole one."""
    with nncdbg.journal.open(path) as journal:
        first, fork = journal.runs()
        assert (fork.parent, fork.parent_step) == (1, step)
        assert (first.status, fork.status, fork.steps) == ("ended", "ended", first.steps)
        for name in journal.tracks(first):
            values = [journal.values(each, name[0])[1] for each in (first, fork)]
            assert len(values[0]) == first.steps
            assert values[0].tobytes() == values[1].tobytes()
    left = len(continued.losses)
    assert 0 < left <= len(whole.losses)
    assert all(map(same_bits, whole.losses[-left:], continued.losses))
    assert whole.states.keys() == continued.states.keys()
    for name, each in whole.states.items():
        assert same_bits(each, continued.states[name]), name


def seed_all(seed):
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


# -- the Trainer of transformers -------------------------------------------------------------

TRAINERS = {
    "shuffled": ({}, SAMPLES),
    "accumulated": ({"gradient_accumulation_steps": 3}, SAMPLES),
    "workers": ({"dataloader_num_workers": 2}, SAMPLES),
    "last batch smaller": ({}, SAMPLES - 2),
}


def train_with_trainer(path, folder, seed, options, samples=SAMPLES, **recorder):
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    pytest.importorskip("accelerate", reason="needs Accelerate")

    trainer_class: Any = transformers.Trainer

    class TrackedTrainer(trainer_class):
        def get_train_dataloader(self):
            return nncdbg.torch.track_loader(super().get_train_dataloader())

    run = Run()
    seed_all(seed)
    callback = nncdbg.torch.TrainerRecorder(path, checkpoint_every=1, **recorder)
    trainer = TrackedTrainer(
        Regressor(),
        transformers.TrainingArguments(
            output_dir=str(folder),
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=BATCH,
            learning_rate=0.05,
            lr_scheduler_type="cosine",
            warmup_steps=2,
            seed=seed,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            use_cpu=True,
            **options,
        ),
        train_dataset=Noisy(samples),
        callbacks=[callback],
    )
    computed = trainer.compute_loss

    def compute_loss(*args, **kwargs):
        loss = computed(*args, **kwargs)
        run.losses.append((loss[0] if isinstance(loss, tuple) else loss).detach().clone())
        return loss

    trainer.compute_loss = compute_loss
    trainer.train()
    run.log = [each for each in trainer.state.log_history if "loss" in each]
    return run.end(trainer.model, trainer.optimizer.optimizer)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRAINERS)
@pytest.mark.parametrize("place", ["start", "first epoch", "later epoch", "boundary"])
def test_trainer_continues_with_the_same_bits(tmp_path, name, place):
    """N12: the Trainer continues with dropout, shuffling, augmentation and a schedule, bit for bit."""
    options, samples = TRAINERS[name]
    updates = -(-samples // BATCH) // options.get("gradient_accumulation_steps", 1)
    step = {"start": 0, "first epoch": 1, "later epoch": updates + 1, "boundary": updates}[place]
    path = tmp_path / "run.db"
    whole = train_with_trainer(path, tmp_path, 0, options, samples)
    continued = train_with_trainer(path, tmp_path, 7, options, samples, resume=f"{path}#1@{step}")
    check_same_bits(path, whole, continued, step)
    steps = [each["step"] for each in continued.log]
    assert steps == [*range(step + 1, EPOCHS * updates + 1)]
    assert [each["loss"] for each in continued.log] == [each["loss"] for each in whole.log[step:]]


@pytest.mark.filterwarnings("ignore")
def test_trainer_cannot_continue_inside_an_epoch_with_a_partial_accumulation(tmp_path):
    path, options = tmp_path / "run.db", {"gradient_accumulation_steps": 4}
    whole = train_with_trainer(path, tmp_path, 0, options)
    with pytest.raises(UsageError, match="no multiple of the 4 that are accumulated") as raised:
        train_with_trainer(path, tmp_path, 7, options, resume=f"{path}@1")
    assert "start of an epoch" in str(raised.value.hint)
    with nncdbg.journal.open(path) as journal:
        assert len(journal.runs()) == 1  # Nothing was written.
    continued = train_with_trainer(path, tmp_path, 7, options, resume=f"{path}@epoch:1")
    check_same_bits(path, whole, continued, 2)


@pytest.mark.filterwarnings("ignore")
def test_step_of_the_trainer_is_re_created(tmp_path):
    path = tmp_path / "run.db"
    train_with_trainer(path, tmp_path, 0, {})
    recreation = recreation_of(f"{path}@8")
    recorder = RecreatedStepRecorder(recreation)

    def script():
        train_with_trainer(path, tmp_path, 7, {})

    assert record_script("train.py", script, recorder, lambda _: 5) == 5
    assert recreation.compared
    assert recreation.first_different is None


# -- Accelerate ------------------------------------------------------------------------------

LOADERS = {
    "shuffled": {"shuffle": True},
    "workers": {"shuffle": True, "num_workers": 2},
    "in order": {},
    "last batch smaller": {"shuffle": True, "samples": SAMPLES - 2},
}


def train_with_accelerate(path, seed, loader, accumulate, seedable=False, at=None):
    accelerate = pytest.importorskip("accelerate", reason="needs Accelerate")
    seed_all(seed)
    loader = dict(loader)
    accelerator = accelerate.Accelerator(
        cpu=True,
        gradient_accumulation_steps=accumulate,
        dataloader_config=accelerate.DataLoaderConfiguration(use_seedable_sampler=seedable),
    )
    model = Regressor()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    batches = torch.utils.data.DataLoader(Noisy(loader.pop("samples", SAMPLES)), BATCH, **loader)
    model, optimizer, batches, scheduler = accelerator.prepare(model, optimizer, batches, scheduler)
    batches = nncdbg.torch.track_loader(batches)
    objects = {"scheduler": scheduler, "loader": batches}
    start = None if at is None else nncdbg.torch.resume(model, optimizer, at, **objects)
    run = Run()
    with nncdbg.torch.flight_recorder(model, optimizer, path, checkpoint_every=1, resumed=start, **objects):
        for _ in range(0 if start is None else start.epoch, EPOCHS):
            for batch in batches:
                with accelerator.accumulate(model):
                    loss = model(**batch)["loss"]
                    run.losses.append(loss.detach().clone())
                    accelerator.backward(loss)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
    return run.end(model, optimizer.optimizer)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("seedable", [False, True])
@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_accelerate_continues_with_the_same_bits(tmp_path, name, accumulate, seedable, step):
    """N12: a loop with Accelerate continues with accumulation, dropout, shuffling and augmentation."""
    path, step = tmp_path / "run.db", step * (5 if accumulate == 1 else 1)
    whole = train_with_accelerate(path, 0, LOADERS[name], accumulate, seedable)
    continued = train_with_accelerate(path, 7, LOADERS[name], accumulate, seedable, f"{path}#1@{step}")
    check_same_bits(path, whole, continued, step)
