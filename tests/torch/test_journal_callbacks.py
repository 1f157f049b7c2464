"""The flight recorder under the training loops of Lightning, transformers and Accelerate."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg  # noqa: E402
import nncdbg.journal  # noqa: E402
import nncdbg.torch  # noqa: E402
from nncdbg.errors import UsageError  # noqa: E402
from nncdbg.opening.journal.ranks import bundle_folder  # noqa: E402
from nncdbg.torch.journal.recreation import RecreatedStepRecorder, recreation_of  # noqa: E402
from nncdbg.torch.script import record_script  # noqa: E402
from tests.torch.test_callbacks import (  # noqa: E402
    BAD_BATCH,
    FullDisk,
    check_torch_is_as_before,
    lightning_training,
    loader,
    network,
    raise_full_disk,
    trainer_training,
)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check(path, status="ended"):
    """Check that the NaN in the data is found, and that the step before it is kept as well."""
    with nncdbg.journal.open(path) as journal:
        (run,) = journal.runs()
        assert (run.status, run.kind) == (status, "torch")
        assert (journal.events(run)[0].kind, journal.events(run)[0].step) == ("nan", BAD_BATCH)
        assert [each.step for each in journal.checkpoints(run)] == [0, 1, 2]
        assert len(journal.values(run, "loss")[0]) == 4
    assert nncdbg.watch(nncdbg.load(bundle_folder(path, 1, BAD_BATCH))).findings


def test_lightning(tmp_path):
    pytest.importorskip("lightning", reason="needs Lightning")
    callback = nncdbg.torch.LightningRecorder(tmp_path / "run.db")
    model = lightning_training(callback)
    check(tmp_path / "run.db")
    assert callback.recorder.number == 1
    check_torch_is_as_before(model)


@pytest.mark.parametrize("event", ["on_train_batch_start", "on_after_backward", "on_train_batch_end"])
def test_lightning_saves_the_step_of_an_exception(tmp_path, event):
    lightning = pytest.importorskip("lightning.pytorch", reason="needs Lightning")
    other = lightning.Callback()
    setattr(other, event, raise_full_disk)
    model, path = network(), tmp_path / "run.db"
    with pytest.raises(FullDisk):
        lightning_training(nncdbg.torch.LightningRecorder(path), other, net=model)
    check_torch_is_as_before(model)
    with nncdbg.journal.open(path) as journal:
        assert journal.run().status == "failed"
        assert [each.kind for each in journal.events()] == ["exception"]


def test_transformers_trainer(tmp_path):
    pytest.importorskip("transformers", reason="needs transformers")
    callback = nncdbg.torch.TrainerRecorder(tmp_path / "run.db")
    trainer_training(callback, tmp_path / "out")
    check(tmp_path / "run.db")


def test_transformers_trainer_saves_the_step_of_an_exception(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    other = transformers.TrainerCallback()
    other.on_pre_optimizer_step = raise_full_disk
    path = tmp_path / "run.db"
    with pytest.raises(FullDisk):
        trainer_training(nncdbg.torch.TrainerRecorder(path), tmp_path / "out", other)
    with nncdbg.journal.open(path) as journal:
        assert journal.run().status == "failed"
        assert [(each.kind, each.step) for each in journal.events()] == [("exception", 0)]
    with nncdbg.torch.watch():  # Nothing of the recorder is left.
        pass


def test_objects_of_accelerate(tmp_path):
    accelerate = pytest.importorskip("accelerate", reason="needs Accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader())
    with nncdbg.torch.flight_recorder(model, optimizer, tmp_path / "run.db"):
        for x, target in batches:
            optimizer.zero_grad()
            accelerator.backward(torch.nn.functional.mse_loss(model(x), target))
            optimizer.step()
    check(tmp_path / "run.db")


def test_trainer_recorder_takes_no_loader(tmp_path):
    pytest.importorskip("transformers", reason="needs transformers")
    with pytest.raises(UsageError, match="takes no loader") as raised:
        nncdbg.torch.TrainerRecorder(tmp_path / "run.db", loader=[])
    assert "get_train_dataloader" in str(raised.value.hint)


def shuffled_training(path, seed, **options):
    """Train two epochs of five steps under Lightning, with shuffling, dropout and a scheduler."""
    lightning = pytest.importorskip("lightning.pytorch", reason="needs Lightning")
    torch.manual_seed(seed)
    nn = torch.nn

    module: Any = lightning.LightningModule

    class Regression(module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.4), nn.Linear(8, 1))

        def training_step(self, batch, index):
            return nn.functional.mse_loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": schedule, "interval": "step"},
            }

    generator = torch.Generator().manual_seed(5)
    x, target = torch.randn(20, 3, generator=generator), torch.randn(20, 1, generator=generator)
    data = torch.utils.data.TensorDataset(x, target)
    batches = nncdbg.torch.track_loader(torch.utils.data.DataLoader(data, 4, shuffle=True))
    trainer = lightning.Trainer(
        max_steps=10 - options.pop("skipped", 0),
        accelerator="cpu",
        callbacks=[nncdbg.torch.LightningRecorder(path, loader=batches, checkpoint_every=4, **options)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Regression()
    trainer.fit(model, batches)
    return model


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("step", [0, 4, 8])
def test_lightning_continues_with_the_same_bits(tmp_path, step):
    """N12: a training of Lightning continues at a checkpoint, in the first epoch or a later one."""
    path = tmp_path / "run.db"
    whole = shuffled_training(path, 0)
    continued = shuffled_training(path, 7, resume=f"{path}#1@{step}", skipped=step)
    with nncdbg.journal.open(path) as journal:
        first, fork = journal.runs()
        assert (fork.parent, fork.parent_step, fork.steps) == (1, step, 10)
        losses = journal.values(first, "loss")[1]
        assert len(losses) == 10
        assert journal.values(fork, "loss")[1].tobytes() == losses.tobytes()
    for one, other in zip(whole.state_dict().values(), continued.state_dict().values(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.filterwarnings("ignore")
def test_step_of_lightning_is_re_created(tmp_path):
    path = tmp_path / "run.db"
    shuffled_training(path, 0)
    recreation = recreation_of(f"{path}@6")
    recorder = RecreatedStepRecorder(recreation)
    assert record_script("train.py", lambda: shuffled_training(path, 7), recorder, lambda _: 5) == 5
    assert recreation.compared
    assert recreation.first_different is None
