"""The watch under the training loops of Lightning, transformers and Accelerate."""

import logging
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import nncdbg.torch  # noqa: E402

BAD_BATCH = 2


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class RootOfError(nn.Module):
    def forward(self, output, target):
        return (output - target).abs().sqrt().mean()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))


def loader(workers=0):
    """Return batches of 4; a NaN is in the data of `BAD_BATCH`."""
    torch.manual_seed(1)
    x, target = torch.randn(16, 3), torch.randn(16, 1)
    x[4 * BAD_BATCH + 1, 2] = float("nan")
    return DataLoader(TensorDataset(x, target), 4, num_workers=workers)


def check(report):
    """Check that a report has the origin of `loader`'s NaN, and that the step began without one."""
    bad = report.bad_steps[0]
    assert bad.step == BAD_BATCH + 1
    assert bad.where == "loss"
    assert bad.recorded is not None, bad.notes
    assert bad.origin is not None
    assert bad.origin.cause == "bad input"
    assert "bad parameter" not in str(report)


class FullDisk(Exception):
    """An error that is no finding of the watch."""


def raise_full_disk(*_, **__):
    raise FullDisk


def check_torch_is_as_before(model):
    """Check that no hook is left, and that another watch can begin."""
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())
    assert torch.autograd.backward.__module__ == "torch.autograd"
    with nncdbg.torch.watch():
        pass


def lightning_training(callback, *others, net=None, **options):
    lightning = pytest.importorskip("lightning.pytorch", reason="needs Lightning")

    module: Any = lightning.LightningModule

    class Regression(module):
        def __init__(self):
            super().__init__()
            self.net = net or network()
            self.calls = 0

        def training_step(self, batch, index):
            self.calls += 1
            loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[callback, *others],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    model = Regression()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(model, loader())
    return model


@pytest.fixture
def lightning_callback():
    pytest.importorskip("lightning", reason="needs Lightning")
    return nncdbg.torch.LightningCallback


def test_lightning_runs_the_whole_step_again(lightning_callback):
    callback = lightning_callback(on_nan="report")
    model = lightning_training(callback)
    check(callback.report)
    assert "net.0.weight.grad" in callback.report.bad_steps[0].bad
    assert model.calls == 5  # four batches, and one again
    assert callback.report.steps == 4


def test_lightning_ends_the_watch_when_it_raises(lightning_callback):
    with pytest.raises(nncdbg.torch.NaNFound):
        lightning_training(lightning_callback())
    with nncdbg.torch.watch():
        pass


@pytest.mark.parametrize("event", ["on_train_batch_start", "on_after_backward", "on_train_batch_end"])
def test_lightning_ends_the_watch_when_another_callback_raises(lightning_callback, event):
    lightning = pytest.importorskip("lightning.pytorch", reason="needs Lightning")
    other = lightning.Callback()
    setattr(other, event, raise_full_disk)
    model = network()
    callback = lightning_callback(on_nan="report")
    with pytest.raises(FullDisk):
        lightning_training(callback, other, net=model)
    check_torch_is_as_before(model)


def test_lightning_skips_the_update(lightning_callback):
    callback = lightning_callback(on_nan="skip")
    model = lightning_training(callback)
    assert callback.report.skipped == 1
    assert all(bool(each.isfinite().all()) for each in model.parameters())


def test_lightning_names_the_accumulated_batch(lightning_callback):
    callback = lightning_callback(on_nan="report")
    lightning_training(callback, accumulate_grad_batches=4)
    bad = callback.report.bad_steps[0]
    assert (bad.step, bad.where) == (1, "loss")
    assert bad.origin is not None, bad.notes
    assert bad.origin.cause == "bad input"


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, x=None, labels=None):
        return {"loss": nn.functional.mse_loss(self.net(x), labels)}


def trainer_training(callback, folder, *others, model=None, data=None, **options):
    pytest.importorskip("accelerate", reason="needs Accelerate")
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    data = data or [
        {"x": x, "labels": target} for batch in loader() for x, target in zip(*batch, strict=True)
    ]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=1,
        per_device_train_batch_size=4,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        **options,
    )
    trainer = transformers.Trainer(
        model or Regressor(), arguments, train_dataset=data, callbacks=[callback, *others]
    )
    trainer._get_train_sampler = lambda *_: None  # batches in order
    trainer.train()
    return trainer


@pytest.fixture
def trainer_callback():
    pytest.importorskip("transformers", reason="needs transformers")
    return nncdbg.torch.TrainerCallback


def test_transformers_trainer_records_the_step_again(trainer_callback, tmp_path):
    callback = trainer_callback(on_nan="report")
    trainer_training(callback, tmp_path)
    check(callback.report)
    assert "net.0.weight.grad" in callback.report.bad_steps[0].bad
    assert callback.report.steps == 4


def test_transformers_trainer_ends_the_watch_when_it_raises(trainer_callback, tmp_path):
    with pytest.raises(nncdbg.torch.NaNFound):
        trainer_training(trainer_callback(), tmp_path)
    with nncdbg.torch.watch():
        pass


@pytest.mark.parametrize("event", ["on_step_begin", "on_pre_optimizer_step", "on_step_end"])
def test_transformers_trainer_ends_the_watch_when_another_callback_raises(trainer_callback, tmp_path, event):
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    other = transformers.TrainerCallback()
    setattr(other, event, raise_full_disk)
    model = Regressor()
    with pytest.raises(FullDisk):
        trainer_training(trainer_callback(on_nan="report"), tmp_path, other, model=model)
    check_torch_is_as_before(model)


def test_transformers_trainer_with_a_language_model_names_the_bad_parameter(trainer_callback, tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    word = 7
    with torch.no_grad():
        model.transformer.wte.weight[word] = float("nan")
    words = torch.arange(1, 17).remainder(word).reshape(4, 4)
    words[3, 2] = word
    data = [{"input_ids": each, "labels": each} for each in words]
    callback = trainer_callback(on_nan="report")
    trainer_training(callback, tmp_path, model=model, data=data, max_steps=2)
    bad = callback.report.bad_steps[0]
    assert (bad.step, bad.where) == (1, "loss")
    assert bad.origin is not None, bad.notes
    assert bad.origin.cause == "bad parameter"
    assert "transformer.wte.weight" in str(bad.origin)


def test_transformers_trainer_accumulates_gradients(trainer_callback, tmp_path):
    callback = trainer_callback(on_nan="report")
    trainer_training(callback, tmp_path, gradient_accumulation_steps=4)
    bad = callback.report.bad_steps[0]
    assert bad.step == 1
    assert bad.origin is not None, bad.notes
    assert bad.origin.cause == "bad input"


@pytest.mark.parametrize("workers", [0, 1])
def test_objects_of_accelerate_are_watched_like_those_they_hold(workers):
    accelerate = pytest.importorskip("accelerate", reason="needs Accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader(workers))
    with nncdbg.torch.watch(model, optimizer, on_nan="report") as report:
        for x, target in batches:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.mse_loss(model(x), target))
            optimizer.step()
    check(report)
    assert report.steps == 4
