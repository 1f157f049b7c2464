"""The flight recorder saves the steps that fail, and a training under it has the same bits."""

import os
import re
import resource
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager, nullcontext

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import nncdbg  # noqa: E402
import nncdbg.journal  # noqa: E402
import nncdbg.torch  # noqa: E402
from nncdbg.errors import NncdbgError, UsageError  # noqa: E402
from nncdbg.opening.configuration import RunConfiguration  # noqa: E402
from nncdbg.opening.journal.ranks import bundle_folder  # noqa: E402
from nncdbg.opening.programs import open_program  # noqa: E402
from nncdbg.torch import SpikeRule, flight_recorder, resume, track, track_loader  # noqa: E402
from nncdbg.torch.journal.tracking import SpikeDetector  # noqa: E402
from nncdbg.torch.journal.training_objects import KeptStart  # noqa: E402
from nncdbg.torch.step_state import TensorCopies  # noqa: E402
from tests.torch.journal_trainings import CASES, train  # noqa: E402

pytestmark = pytest.mark.usefixtures("forked_processes")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Problem:
    """A small regression that fails in a way that a test chooses."""

    def __init__(self, seed=0, width=4):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def step(self, loss_factor=1.0, update=True):
        x = torch.randn(5, 3)
        self.optimizer.zero_grad()
        loss = ((self.model(x) - x.sum(1, keepdim=True)) * loss_factor).square().mean()
        loss.backward()
        if update:
            self.optimizer.step()
        return loss.detach()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.db"


def only_run(path):
    """Return events, checkpoint steps and status of the only run of a journal."""
    with nncdbg.journal.open(path) as journal:
        (run,) = journal.runs()
        events = [(each.kind, each.step) for each in journal.events(run)]
        return events, [each.step for each in journal.checkpoints(run)], run.status


def test_nan_saves_the_starts_of_the_last_steps_and_the_step(path, capsys):
    problem = Problem()
    with flight_recorder(problem.model, problem.optimizer, path, keep=3):
        for number in range(7):
            problem.step(float("nan") if number == 5 else 1.0)
    assert only_run(path) == ([("nan", 5), ("nan", 6)], [3, 4, 5], "ended")
    report = nncdbg.watch(nncdbg.load(bundle_folder(path, 1, 5)))
    assert report.findings
    opened = open_program(RunConfiguration(program=f"{path}@nan")).program
    assert opened.graphs.keys() == nncdbg.load(bundle_folder(path, 1, 5)).graphs.keys()
    assert "step 5: loss has 1 NaN of 1" in capsys.readouterr().err


def test_checkpoint_of_a_bad_step_is_the_state_before_it(path):
    problem = Problem()
    with flight_recorder(problem.model, problem.optimizer, path, keep=1):
        for number in range(4):
            if number == 3:
                before = {name: each.clone() for name, each in problem.model.state_dict().items()}
                state = torch.get_rng_state()
            problem.step(float("inf") if number == 3 else 1.0)
    other = Problem(seed=1)
    resumed = resume(other.model, other.optimizer, f"{path}@nan")
    assert resumed.step == 3
    assert all(torch.equal(each, before[name]) for name, each in other.model.state_dict().items())
    assert {each["step"].item() for each in other.optimizer.state.values()} == {3.0}
    # Without a tracked loader, a step begins with its forward pass: the batch was drawn before.
    torch.set_rng_state(state)
    torch.randn(5, 3)
    after = torch.get_rng_state()
    resume(other.model, other.optimizer, f"{path}@nan")
    assert torch.equal(torch.get_rng_state(), after)


def test_skipped_updates_leave_parameters_finite(path):
    problem = Problem()
    with flight_recorder(problem.model, problem.optimizer, path, skip_bad_updates=True):
        for number in range(6):
            problem.step(float("nan") if number == 2 else 1.0)
    assert only_run(path)[0] == [("nan", 2)]
    assert all(bool(each.isfinite().all()) for each in problem.model.parameters())


def test_spike_saves_its_step(path):
    problem = Problem()
    with flight_recorder(problem.model, problem.optimizer, path, spike=SpikeRule(8, 20, 10), keep=2):
        for number in range(30):
            problem.step(50.0 if number == 24 else 1.0)
    events, steps, _ = only_run(path)
    assert events == [("spike", 24)]
    assert steps == [23, 24]
    assert "%loss" in str(nncdbg.load(bundle_folder(path, 1, 24)))


def test_steady_losses_are_no_spikes(path):
    problem = Problem()
    with flight_recorder(problem.model, problem.optimizer, path):
        for _ in range(60):
            problem.step()
    assert only_run(path)[0] == []


@pytest.mark.parametrize(
    ("losses", "spikes"),
    [
        ([1.0] * 60, []),
        ([0.0] * 60, []),
        ([-2.0] * 60, []),
        ([0.5, 0.5, 0.5, 0.5, 0.6] * 20, []),
        ([-0.5, -0.5, -0.5, -0.4] * 20, []),
        ([0.0, 0.0, 0.0, 0.3] * 20, []),
        ([1e4] + [2.3, 2.2, 2.4] * 30, []),
        ([0.0, 0.0, 0.0, 0.3] * 20 + [50.0], [80]),
        ([0.5, 0.5, 0.5, 0.6] * 20 + [50.0], [80]),
        ([-2.0, -2.1, -1.9] * 20 + [5.0], [60]),
        ([0.0] * 60 + [5.0], [60]),
        ([2.3] * 5 + [500.0] + [2.3] * 30, []),
    ],
)
def test_spikes_of_unusual_losses(losses, spikes):
    """Losses of which most are equal, such as hinge losses at 0, have no median absolute deviation."""
    detector = SpikeDetector(SpikeRule())
    found = [step for step, loss in enumerate(losses) if detector.score(loss) is not None]
    assert found == spikes


def test_exception_saves_its_step(path, capsys):
    problem = Problem()

    def fail(*_):
        raise ValueError("no such sample")

    def train_until_it_fails():
        with flight_recorder(problem.model, problem.optimizer, path):
            for number in range(5):
                if number == 4:
                    problem.model[3].register_forward_pre_hook(fail)
                problem.step()

    with pytest.raises(ValueError, match="no such sample"):
        train_until_it_fails()
    assert only_run(path) == ([("exception", 4)], [2, 3, 4], "failed")
    program = nncdbg.load(bundle_folder(path, 1, 4))
    assert any("tanh" in node.op for graph in program.graphs.values() for node in graph.nodes)
    assert "ended early: ValueError" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupted_run_is_no_failure(path, error):
    problem = Problem()

    def interrupt():
        with flight_recorder(problem.model, problem.optimizer, path):
            problem.step()
            raise error

    with pytest.raises(error):
        interrupt()
    assert only_run(path)[2] == ("interrupted" if error is KeyboardInterrupt else "ended")


@pytest.mark.parametrize(
    ("error", "arguments", "status", "steps"),
    [
        (KeyboardInterrupt, (), "interrupted", [2, 3, 4]),
        (SystemExit, (3,), "failed", [2, 3, 4]),
        (SystemExit, ("the loss is NaN",), "failed", [2, 3, 4]),
        (SystemExit, (0,), "ended", []),
        (SystemExit, (), "ended", []),
    ],
)
def test_interrupted_training_keeps_the_starts_of_its_last_steps(path, error, arguments, status, steps):
    problem = Problem()

    def interrupt():
        with flight_recorder(problem.model, problem.optimizer, path):
            for _ in range(5):
                problem.step()
            raise error(*arguments)  # A new one: an error keeps the frames that it passed, with the model.

    with pytest.raises(error):
        interrupt()
    assert only_run(path) == ([], steps, status)


WORKER_ERROR = """Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "train.py", line 28, in __getitem__
ValueError: no such sample

"""


@pytest.mark.parametrize(
    ("message", "event"),
    [
        (WORKER_ERROR, "Caught ValueError in DataLoader worker process 0. ... ValueError: no such sample"),
        ("no such sample", "no such sample"),
    ],
)
def test_event_of_an_exception_is_one_line(path, message, event):
    problem = Problem()

    def fail():
        with flight_recorder(problem.model, problem.optimizer, path):
            problem.step()
            raise ValueError(message)

    with pytest.raises(ValueError, match=re.escape(message)):
        fail()
    with nncdbg.journal.open(path) as journal:
        assert [each.message for each in journal.events()] == [f"ValueError: {event}"]


TERMINATED = """
import os, signal, sys
from tests.torch.test_journal_flight_recorder import Problem, flight_recorder
problem = Problem()
if "own" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: (print("own handler"), sys.exit(7)))
count = []
def kill(*_):
    count.append(1)
    if len(count) == 4:
        os.kill(os.getpid(), signal.SIGTERM)
if "forward" in sys.argv:
    problem.model[2].register_forward_hook(kill)
elif "backward" in sys.argv:
    problem.model[0].weight.register_hook(kill)
else:
    problem.optimizer.register_step_post_hook(kill)
with flight_recorder(problem.model, problem.optimizer, sys.argv[1]):
    for _ in range(10):
        problem.step()
print("not reached")
"""


@pytest.mark.parametrize("place", ["forward", "backward", "update"])
def test_sigterm_saves_the_step_and_ends_the_process(path, place):
    done = subprocess.run(
        [sys.executable, "-c", TERMINATED, str(path), place], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert "not reached" not in done.stdout
    events, steps, status = only_run(path)
    assert (events, status) == ([("signal", 3)], "interrupted")
    assert steps == [1, 2, 3]
    if place == "forward":
        assert nncdbg.load(bundle_folder(path, 1, 3)).graphs


def test_sigterm_inside_of_a_call_of_the_journal_waits_for_its_end(path):
    """The locks of the journal are not reentrant: a handler that writes at once would wait for itself."""
    problem, seen = Problem(), []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append("own handler"))
    try:
        with flight_recorder(problem.model, problem.optimizer, path) as recorder:
            problem.step()
            writer = recorder._journal._writer

            def interrupted(text):
                os.kill(os.getpid(), signal.SIGTERM)
                seen.append(text)

            recorder._journal._call(lambda: interrupted("the call ends"))
            assert writer is recorder._journal._writer
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == ["the call ends", "own handler"]
    assert ("signal", 0) in only_run(path)[0]


@pytest.mark.parametrize("place", ["capture", "checkpoint"])
def test_sigterm_inside_of_a_start_saves_only_complete_ones_once(path, place, monkeypatch):
    """A start that is captured has tensors of two steps; one that is written may not be written twice."""
    problem, weights = Problem(), []
    changed = {"capture": (TensorCopies, "update"), "checkpoint": (KeptStart, "checkpoint")}[place]
    whole, calls = getattr(*changed), []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == (9 if place == "capture" else 6):
            os.kill(os.getpid(), signal.SIGTERM)
        return whole(*arguments)

    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with flight_recorder(problem.model, problem.optimizer, path, checkpoint_every=1, keep=2):
            monkeypatch.setattr(*changed, interrupted)
            for _ in range(12):
                weights.append(problem.model[0].weight.detach().numpy().copy())
                problem.step()
    finally:
        signal.signal(signal.SIGTERM, before)
    events, steps, status = only_run(path)
    assert [kind for kind, _ in events] == ["signal"]
    assert (steps, status) == ([*range(12)], "interrupted")
    with nncdbg.journal.open(path) as journal:
        for record in journal.checkpoints():
            assert np.array_equal(journal.read(record).tensors["state/0.weight"], weights[record.step])


def test_sigterm_handler_of_the_script_is_called(path):
    done = subprocess.run(
        [sys.executable, "-c", TERMINATED, str(path), "own"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (7, "own handler\n"), done.stderr
    assert only_run(path) == ([("signal", 3)], [1, 2, 3], "interrupted")


def test_handler_of_sigterm_is_restored(path):
    problem = Problem()
    before = signal.getsignal(signal.SIGTERM)
    with flight_recorder(problem.model, problem.optimizer, path):
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


# -- tracked values --------------------------------------------------------------------------


def test_tracked_values_are_those_of_a_loop(path):
    """N9, N10: values of a training, and of labels outside of the model, equal those of a plain loop."""
    problem, losses, expected = Problem(), [], []
    with flight_recorder(problem.model, problem.optimizer, path, fetch_every=7):
        for number in range(20):
            losses.append(float(problem.step()))
            track("number", number)
            labels = np.arange(4) == number % 4
            track("host", lambda labels=labels: labels.mean())
            tensor = torch.full((), float(number))
            track("changed later", tensor)
            tensor.zero_()
            expected.append(float(problem.model[0].weight.detach().norm()))
            track("norm", problem.model[0].weight.norm())
    with nncdbg.journal.open(path) as journal:
        assert [*journal.values(1, "loss")[0]] == [*range(20)]
        assert [*journal.values(1, "loss")[1]] == losses
        assert [*journal.values(1, "number")[1]] == [*journal.values(1, "changed later")[1]] == [*range(20)]
        assert [*journal.values(1, "norm")[1]] == expected
        assert [*journal.values(1, "host")[1]] == [0.25] * 20


def test_test_accuracy_equals_a_plain_loop(path):
    """N11: the accuracy on the test set, with a smaller last batch, equals a plain NumPy loop."""
    problem = Problem()
    data = torch.randn(11, 3)
    batches = [*DataLoader(TensorDataset(data, data.sum(1) > 0), 4)]
    with flight_recorder(problem.model, problem.optimizer, path):
        for _ in range(3):
            problem.step()
            problem.model.eval()
            with torch.no_grad():
                for x, target in batches:
                    right = (problem.model(x)[:, 0] > 0) == target
                    track("accuracy", right.float().mean(), part="test", weight=len(x))
            problem.model.train()
        plain = [
            bool(p) == bool(t)
            for x, target in batches
            for p, t in zip(problem.model.eval()(x).detach().numpy()[:, 0] > 0, target.numpy(), strict=True)
        ]
    with nncdbg.journal.open(path) as journal:
        steps, values = journal.values(1, "accuracy", "test")
        assert [*steps] == [0, 1, 2]
        assert values[-1] == pytest.approx(np.mean(plain), rel=1e-12)
        assert ("accuracy", "train") not in journal.tracks(1)


def test_track_reads_no_tensor_before_it_is_due(path, monkeypatch):
    """N10: values of 1000 steps are read from their device every k steps."""
    from nncdbg.torch.journal.tracking import TrackedValues

    reads, written = [], []
    original = torch.Tensor.tolist

    def counted(self):
        reads.append(1)
        return original(self)

    monkeypatch.setattr(torch.Tensor, "tolist", counted)
    values = TrackedValues(lambda *each: written.append(each), 100)
    for step in range(1000):
        values.begin_step(step)
        values.add("a", step, torch.tensor(1.0), "train", 1)
        values.add("b", step, torch.tensor(2), "train", 1)
    values.fetch()
    assert len(reads) == 10
    assert len(written) == 2000


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(3), "not a tensor of float32 with shape (3,)"),
        (torch.tensor(1j), "not a tensor of complex64"),
        ("0.5x", "not str"),
        (None, "not NoneType"),
        (lambda: [1], "not list"),
    ],
)
def test_track_refuses_other_values(path, value, message):
    problem = Problem()
    with flight_recorder(problem.model, problem.optimizer, path):
        problem.step()
        with pytest.raises(UsageError) as error:
            track("x", value)
    assert message in str(error.value)


def test_track_needs_a_recorder_and_a_step(path):
    with pytest.raises(UsageError, match="no flight recorder is active"):
        track("x", 1)
    problem = Problem()
    with flight_recorder(problem.model, problem.optimizer, path):
        with pytest.raises(UsageError, match="before the first step"):
            track("x", 1)
        problem.step()
        with pytest.raises(UsageError, match="no part"):
            track("x", 1, part="tset")
        with pytest.raises(UsageError, match="weight"):
            track("x", 1, weight=0)


# -- wrong use and trouble -------------------------------------------------------------------


def test_two_recorders_and_a_watch_refuse_each_other(path, tmp_path):
    problem = Problem()
    with flight_recorder(problem.model, problem.optimizer, path):
        problem.step()
        with pytest.raises(UsageError, match="active already"):
            flight_recorder(problem.model, problem.optimizer, tmp_path / "b.db").start()
        with pytest.raises(UsageError, match="active already"), nncdbg.torch.watch():
            pass
        problem.step()
    assert not (tmp_path / "b.db").exists()
    assert only_run(path) == ([], [], "ended")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 0}, "keep=0"),
        ({"fetch_every": 0}, "fetch_every=0"),
        ({"batch": "values"}, "batch='values'"),
        ({"batch": "value"}, "needs the loader"),
        ({"checkpoint_every": "often"}, "often"),
        ({"loader": [1, 2]}, "must be a tracked loader, not list"),
        ({"scheduler": 3}, "int"),
        ({"spike": -1}, "threshold"),
        ({"on_journal_error": "raise"}, "use 'warn' or 'stop'"),
    ],
)
def test_wrong_arguments(path, options, message):
    problem = Problem()
    with pytest.raises(UsageError) as error:
        flight_recorder(problem.model, problem.optimizer, path, **options)
    assert message in str(error.value)
    assert not path.exists()


def test_file_that_is_no_journal(path):
    path.write_text("weights")
    problem = Problem()
    with pytest.raises(NncdbgError) as error:
        flight_recorder(problem.model, problem.optimizer, path).start()
    assert "run.db" in str(error.value)
    with nncdbg.torch.watch():  # Nothing of the recorder is left.
        problem.step()


def test_folder_that_does_not_exist(tmp_path):
    problem = Problem()
    with pytest.raises(NncdbgError):
        flight_recorder(problem.model, problem.optimizer, tmp_path / "none" / "run.db").start()


@contextmanager
def full_disk(path):
    """Let no file become larger than the journal is now."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = max(each.stat().st_size for each in path.parent.glob(f"{path.name}*") if each.is_file())
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1024, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


ENDS_HERE = "the journal .*run.db ends here, and the training {}: cannot write the journal .*run.db: "


def test_full_disk_ends_the_journal_and_not_the_training(path, capsys):
    problem, plain = Problem(), Problem()
    expected = [plain.step() for _ in range(40)]
    with flight_recorder(problem.model, problem.optimizer, path, checkpoint_every=1) as recorder:
        torch.manual_seed(0)
        Problem()
        losses = [problem.step() for _ in range(3)]
        recorder._journal.write("flush")
        with full_disk(path):
            losses += [problem.step() for _ in range(37)]
            assert len(re.findall(ENDS_HERE.format("continues"), capsys.readouterr().err)) == 1
    assert all(map(torch.equal, losses, expected))
    assert re.search("run 1 in .*run.db is incomplete: cannot write", capsys.readouterr().err)
    with nncdbg.journal.open(path) as journal:
        assert 3 <= journal.run().steps < 40


def test_full_disk_stops_the_training_on_request(path, capsys):
    problem, steps = Problem(), 0

    def train():
        nonlocal steps
        with flight_recorder(
            problem.model, problem.optimizer, path, checkpoint_every=1, on_journal_error="stop"
        ):
            problem.step()
            with full_disk(path):
                while steps < 999:
                    steps += 1
                    problem.step()

    with pytest.raises(NncdbgError, match="cannot write the journal"):
        train()
    assert 0 < steps < 999
    assert problem.optimizer.state_dict()["state"][0]["step"] == steps + 1  # The step was completed.
    assert len(re.findall(ENDS_HERE.format("stops"), capsys.readouterr().err)) == 1
    with nncdbg.torch.watch():  # Nothing of the recorder is left.
        problem.step()


@pytest.mark.parametrize("action", ["warn", "stop"])
def test_error_at_the_end_of_the_journal_is_reported(path, capsys, action):
    problem = Problem()

    def train():
        recorder = flight_recorder(problem.model, problem.optimizer, path, on_journal_error=action)
        with recorder:
            problem.step()
            recorder._journal.write("note", "x" * 2_000_000)
            limits.enter_context(full_disk(path))

    with ExitStack() as limits, pytest.raises(NncdbgError) if action == "stop" else nullcontext():
        train()
    assert "run.db ends here: cannot write" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["warn", "stop"])
def test_a_step_that_cannot_be_written_is_an_error_of_the_journal(path, capsys, action):
    problem = Problem()
    path.with_name("run.db.steps").write_text("no folder")

    def train():
        with flight_recorder(problem.model, problem.optimizer, path, on_journal_error=action):
            problem.step(float("nan"))

    with (
        pytest.raises(NncdbgError, match=r"cannot write .*run1-step0") if action == "stop" else nullcontext()
    ):
        train()
    printed = capsys.readouterr().err
    assert "the step cannot be saved as a folder: " in printed
    assert ("is incomplete: cannot write" in printed) == (action == "warn")
    assert only_run(path)[2] == ("failed" if action == "stop" else "ended")


def test_resume_lists_what_does_not_fit(path):
    problem = Problem()
    with flight_recorder(problem.model, problem.optimizer, path, checkpoint_every=1):
        problem.step()
    wide = Problem(width=6)
    before = [each.clone() for each in wide.model.parameters()]
    with pytest.raises(UsageError) as error:
        resume(wide.model, wide.optimizer, f"{path}@0")
    assert "0.weight has shape (6, 3), and (4, 3) in the checkpoint" in str(error.value)
    assert all(map(torch.equal, before, wide.model.parameters()))
    with pytest.raises(UsageError, match="the optimizer is SGD, and Adam in the checkpoint"):
        resume(problem.model, torch.optim.SGD(problem.model.parameters(), lr=1), f"{path}@0")
    scheduler = torch.optim.lr_scheduler.StepLR(problem.optimizer, 1)
    with pytest.raises(UsageError, match="it has 0 schedulers, and you passed 1"):
        resume(problem.model, problem.optimizer, f"{path}@0", scheduler=scheduler)
    more = nn.ModuleDict({"a": problem.model})
    with pytest.raises(UsageError, match="0.weight is only in the checkpoint; and"):
        resume(more, problem.optimizer, f"{path}@0")
    with pytest.raises(UsageError, match="it has no loader, and you passed one"):
        resume(problem.model, problem.optimizer, f"{path}@0", loader=track_loader([1]))


@pytest.mark.parametrize("address", ["{}#7@0", "{}@epoch:4", "{}@nan", "{}x@1", "{}@z"])
def test_resume_at_an_unknown_address(path, address):
    problem = Problem()
    with flight_recorder(problem.model, problem.optimizer, path):
        problem.step()
    with pytest.raises(NncdbgError):
        resume(problem.model, problem.optimizer, address.format(path))


def test_resume_without_a_checkpoint(path):
    problem = Problem()
    with flight_recorder(problem.model, problem.optimizer, path):
        problem.step()
    with pytest.raises(UsageError, match="no checkpoint"):
        resume(problem.model, problem.optimizer, str(path))


def test_workers_and_forks_write_nothing(path):
    problem = Problem()
    with flight_recorder(problem.model, problem.optimizer, path):
        problem.step()
        child = os.fork()
        if not child:
            code = 1
            try:
                track("x", 1)
            except UsageError:
                problem.step()
                code = 0 if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL else 2
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        problem.step()
    with nncdbg.journal.open(path) as journal:
        assert [*journal.values(1, "loss")[0]] == [0, 1]
        assert journal.run(1).steps == 2


def test_batches_by_value_are_in_the_checkpoint(path):
    problem = Problem()
    data = torch.randn(8, 3)
    loader = track_loader(DataLoader(TensorDataset(data), 4))
    with flight_recorder(problem.model, problem.optimizer, path, loader=loader, batch="value"):
        for (x,) in loader:
            loss = problem.model(x).square().mean()
            if loader.position.batches == 2:
                loss = loss * float("nan")
            loss.backward()
            problem.optimizer.step()
    with nncdbg.journal.open(path) as journal:
        checkpoint = journal.read(journal.checkpoints(1)[-1])
        assert checkpoint.step == 1
        assert np.array_equal(checkpoint.tensors["collected/batches.0.0"], data[4:].numpy())


def test_two_optimizers_make_two_steps(path):
    torch.manual_seed(0)
    one, two = nn.Linear(3, 3), nn.Linear(3, 1)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (one, two)]
    with flight_recorder({"one": one, "two": two}, optimizers, path, checkpoint_every=1):
        for _ in range(4):
            loss = two(one(torch.randn(2, 3))).square().mean()
            loss.backward()
            for each in optimizers:
                each.step()
                each.zero_grad()
    with nncdbg.journal.open(path) as journal:
        assert journal.run().steps == 8
        assert "moment/two.weight.momentum_buffer" in journal.read(journal.checkpoints(1)[-1]).tensors


def test_closure_of_lbfgs_is_one_step(path):
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4)
    x = torch.randn(8, 3)

    def closure():
        optimizer.zero_grad()
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        return loss

    with flight_recorder(net, optimizer, path, checkpoint_every=1):
        losses = [float(optimizer.step(closure).detach()) for _ in range(4)]
    with nncdbg.journal.open(path) as journal:
        assert [*journal.values(1, "loss")[1]] == losses
    state = {name: each.clone() for name, each in net.state_dict().items()}
    resume(net, optimizer, f"{path}@2")
    assert [float(optimizer.step(closure).detach()) for _ in range(2)] == losses[2:]
    assert all(torch.equal(each, state[name]) for name, each in net.state_dict().items())


def test_scaled_losses_are_tracked_without_the_factor(path):
    case = CASES["GradScaler"]
    trained = train(case, path)
    with nncdbg.journal.open(path) as journal:
        _, values = journal.values(1, "loss")
    assert np.allclose(values, [float(each) for each in trained.losses], rtol=1e-6)
