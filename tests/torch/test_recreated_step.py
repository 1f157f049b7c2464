"""`nncdbg record --at`: a script re-creates a step of its journal, and records it."""

import dataclasses
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg  # noqa: E402
import nncdbg.journal  # noqa: E402
from nncdbg.engine.ops.aten.arrays import host_array  # noqa: E402
from nncdbg.opening.journal.ranks import bundle_folder  # noqa: E402
from nncdbg.terminal.main import main  # noqa: E402
from nncdbg.torch.journal.recreation import RecreatedStepRecorder, recreation_of  # noqa: E402
from nncdbg.torch.script import record_script  # noqa: E402
from tests.torch.journal_trainings import CASES, train  # noqa: E402

pytestmark = pytest.mark.usefixtures("forked_processes")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def recreated(case, path, at):
    """Re-create a step with another seed; return the recreation, the recorded step and the model after it."""
    models, steps = [], []

    def model():
        models.append(case.model())
        return models[-1]

    def use(recorded):
        steps.append(recorded)
        return 0

    recreation = recreation_of(at)
    again = dataclasses.replace(case, model=model)
    record_script("train.py", lambda: train(again, path, seed=9), RecreatedStepRecorder(recreation), use)
    return recreation, steps[0], models[0]


@pytest.mark.nightly
@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
@pytest.mark.parametrize("step", [0, 2, 5])
def test_step_has_the_bits_of_the_run(case, step, tmp_path):
    """N12: any step of a run is re-created; its losses and its parameters are those of the run."""
    path = tmp_path / "run.db"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(case, path, checkpoint_every=1)
        with nncdbg.journal.open(path) as journal:
            record = journal.nearest(1, step + 1)
            assert record is not None
            assert record.step == step + 1
            after = dict(journal.read(record).tensors)
        train(case, tmp_path / "sparse.db", checkpoint_every=3)
        recreation, recorded, model = recreated(case, path, f"{tmp_path / 'sparse.db'}@{step}")
    assert recreation.saved.step == step // 3 * 3
    assert recreation.compared
    assert recreation.first_different is None
    assert recorded.failure is None
    assert len(recorded.step.program.graph.nodes) > 0
    for name, tensor in model.named_parameters():
        assert host_array(tensor.detach()).tobytes() == np.asarray(after[f"state/{name}"]).tobytes(), name


def test_nothing_is_written_to_the_journal(tmp_path):
    path = tmp_path / "run.db"
    train(CASES["2 workers"], path, checkpoint_every=4)
    before = path.read_bytes()
    recreated(CASES["2 workers"], path, f"{path}@6")
    assert path.read_bytes() == before
    with nncdbg.journal.open(path) as journal:
        assert len(journal.runs()) == 1


SCRIPT = """
import sys
import torch
import nncdbg.torch

torch.manual_seed(int(sys.argv[1]))
width = int(sys.argv[2])
model = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.Dropout(0.5), torch.nn.Linear(width, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(40, 3), torch.randn(40, 1))
loader = torch.utils.data.DataLoader(data, 4, shuffle=True)
tracked = nncdbg.torch.track_loader(loader)

def train(loader):
    for x, target in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        if sys.argv[3] == "recorder":
            nncdbg.torch.track("norm", lambda: model[0].weight.norm())

if sys.argv[3] == "recorder":
    with nncdbg.torch.flight_recorder(
        model, optimizer, "run.db", loader=tracked, checkpoint_every=4, batch=sys.argv[4]
    ) as recorder:
        assert recorder.number == 1
        train(tracked)
elif sys.argv[3] == "resume":
    assert nncdbg.torch.resume(model, optimizer, "other.db@0", loader=tracked).step == 4
    train(tracked)
else:
    train(tracked if sys.argv[3] == "tracked" else loader)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with a script and the journal of its run."""
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    assert main(["record", "train.py", "0", "8", "recorder", "reference", "--step", "99"]) == 2
    return tmp_path


def command(*arguments, at="run.db@6"):
    return main(["record", "train.py", *arguments, "--at", at])


def own_process(*arguments):
    """Run the command in a process of its own, which has no optimizers but those of the script."""
    line = [sys.executable, "-m", "nncdbg", "record", "train.py", *arguments, "--at", "run.db@6"]
    return subprocess.run(line, capture_output=True, text=True, timeout=600, env=os.environ)


SAME_LOSSES = "note: the losses of the steps 4 to 6 are those of run 1 of run.db, bit for bit"


def test_address_opens_the_step_that_the_tracked_loader_re_created(folder):
    ended = own_process("0", "8", "tracked", "reference")
    assert ended.returncode == 0, ended.stderr
    assert SAME_LOSSES in ended.stderr
    assert not nncdbg.watch(nncdbg.load(bundle_folder("run.db", 1, 6))).findings


@pytest.mark.parametrize("way", ["recorder", "resume"])
def test_address_opens_the_step_that_was_re_created(folder, way, capsys):
    assert command("0", "8", way, "reference") == 0
    assert SAME_LOSSES in capsys.readouterr().err
    saved = bundle_folder("run.db", 1, 6)
    assert Path(saved).is_dir()
    assert not nncdbg.watch(nncdbg.load(saved)).findings
    assert command("0", "8", way, "reference") == 2
    assert "step 6 is recorded already, in" in capsys.readouterr().err


def test_other_data_are_reported(folder, capsys):
    """The seed of the script makes its data, so another one gives other losses."""
    assert command("1", "8", "recorder", "reference", "-o", "other") == 1
    assert "note: the loss of step 4 is " in capsys.readouterr().err


def test_script_without_a_tracked_loader_uses_its_own_position(folder):
    ended = own_process("0", "8", "plain", "reference", "-o", "other")
    assert ended.returncode == 1, ended.stderr
    assert "no tracked loader was restored" in ended.stderr


def test_batch_that_was_kept_by_value_replaces_the_one_of_the_data(folder, capsys):
    Path("run.db").unlink()
    assert main(["record", "train.py", "0", "8", "recorder", "value", "--step", "99"]) == 2
    assert command("1", "8", "recorder", "value", "-o", "other", at="run.db@4") == 0
    assert "note: the loss is that of run 1 of run.db, bit for bit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "at", "message"),
    [
        (("0", "9", "recorder"), "run.db@6", "0.weight has shape (9, 3), and (8, 3) in the checkpoint"),
        (("0", "8", "recorder"), "run.db@10", "run 1 has no step 10\n  hint: it has the steps 0 to 9"),
        (("0", "8", "recorder"), "run.db@nan", "run 1 has no NaN or Inf"),
        (("0", "8", "recorder"), "run.db#2@1", "the journal run.db has no run 2"),
        (("0", "8", "recorder"), "run.db", "run.db is a journal: name a step"),
        (("0", "8", "recorder"), "run.db@x", '"@x" is not a step'),
        (("0", "8", "recorder", "reference", "--step", "3"), "run.db@6", "both name the step"),
    ],
)
def test_error_names_what_is_wrong(folder, arguments, at, message, capsys):
    arguments = arguments if len(arguments) > 3 else (*arguments, "reference")
    assert command(*arguments, at=at) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert error.count("hint:") == 1


@pytest.mark.parametrize("entry", [nncdbg.load, nncdbg.Debugger, nncdbg.watch, nncdbg.run])
def test_python_functions_open_an_address(folder, entry):
    with pytest.raises(nncdbg.UsageError, match="is a PyTorch training, not a program") as raised:
        entry("run.db@6")
    assert raised.value.hint == "re-create the step in its script: nncdbg record train.py --at run.db@6"
    assert command("0", "8", "recorder", "reference") == 0
    assert entry("run.db@6") is not None


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("run.db", "run.db is a journal: name a step"),
        ("run.db@99", "run 1 has no step 99"),
        ("run.db#3@1", "the journal run.db has no run 3"),
        ("none.db@1", "there is no file none.db"),
    ],
)
def test_python_functions_report_a_wrong_address(folder, address, message):
    with pytest.raises(nncdbg.NncdbgError, match=message):
        nncdbg.load(address)


def test_python_functions_refuse_a_step_of_graph_text(tmp_path):
    path = str(tmp_path / "graph.db")
    example = Path(__file__).parents[2] / "examples" / "train_mlp.nnc"
    nncdbg.run(example, journal=path)
    with pytest.raises(nncdbg.UsageError, match="whose states are in the journal") as raised:
        nncdbg.load(f"{path}@3")
    assert (raised.value.hint or "").startswith("nncdbg.run(")
