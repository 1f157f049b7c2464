"""The flight recorder under the training loops of Lightning, transformers and Accelerate."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg  # noqa: E402
import nncdbg.journal  # noqa: E402
import nncdbg.torch  # noqa: E402
from nncdbg.engine.errors import UsageError  # noqa: E402
from nncdbg.torch.journal.findings import bundle_folder  # noqa: E402
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


def test_callbacks_take_no_loader(tmp_path):
    pytest.importorskip("lightning", reason="needs Lightning")
    with pytest.raises(UsageError, match="takes no loader"):
        nncdbg.torch.LightningRecorder(tmp_path / "run.db", loader=[])
