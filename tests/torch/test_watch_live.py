"""The tier live of the watch reports a step with NaN or Inf as it ran, without a second run."""

import gc
import weakref
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

pytestmark = pytest.mark.filterwarnings("ignore:std.*degrees of freedom is <= 0")

from torch import nn  # noqa: E402

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402
from nncdbg.errors import UsageError  # noqa: E402
from nncdbg.terminal.main import main  # noqa: E402
from tests.torch.planted import CLEAN, PLANTED  # noqa: E402
from tests.torch.planted.origins import differences  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


MISSED = {
    "infinite_gain_of_checkpoint": "the Inf is lost in tanh; the first NaN is that of 0 times Inf in backward"
}
"""Cases with another origin in the report, with the reason."""


def planted(case):
    missed = MISSED.get(case.name)
    marks = [pytest.mark.xfail(reason=missed, strict=True)] if missed else []
    return pytest.param(case, id=case.name, marks=marks)


class RootOfError(nn.Module):
    def forward(self, output):
        return (output - output.detach()).abs().sqrt().mean()


class Root(nn.Module):
    def forward(self, output):
        return (output - output.detach()).abs().sqrt()


LINE = RootOfError.forward.__code__.co_firstlineno + 1


def train(steps=4, bad=2, *, reached=None, **options):
    """Train with a NaN gradient in the step `bad`; return report and parameters."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loss_of = RootOfError()
    if "tier" not in options:
        return None, run(model, optimizer, loss_of, steps, bad, reached)
    with nncdbg.torch.watch(model, optimizer, **options) as report:
        state = run(model, optimizer, loss_of, steps, bad, reached)
    return report, state


def run(model, optimizer, loss_of, steps, bad, reached):
    for number in range(steps):
        output = model(torch.randn(8, 3))
        optimizer.zero_grad()
        loss = loss_of(output) if number == bad else output.square().mean()
        loss.backward()
        if reached is not None:
            reached.append(number)
        optimizer.step()
    return [*model.state_dict().values(), torch.rand(3)]


def test_operator_is_reported_once_and_the_training_continues(capsys):
    report, _ = train(tier="live", on_nan="report")
    bad = report.bad_steps[0]
    assert (bad.step, bad.where) == (3, "gradients")
    assert (bad.origin.op, bad.origin.site.node) == ("aten.div.Tensor", "SqrtBackward0")
    assert bad.origin.cause == "square root at zero in backward"
    assert (Path(bad.origin.site.file).name, bad.origin.site.source_line) == (Path(__file__).name, LINE)
    assert report.steps == 4
    assert capsys.readouterr().err.count("aten.div.Tensor produced it") == 1


def test_raise_ends_the_training_before_the_update():
    reached: list[int] = []
    with pytest.raises(nncdbg.torch.NaNFound) as caught:
        train(tier="live", reached=reached)
    assert reached == [0, 1, 2]
    debugger = nncdbg.Debugger(caught.value.bad_step.recorded)
    debugger.run()
    with nncdbg.torch.watch(tier="live"):
        pass


def test_step_that_cannot_run_again_has_its_operator():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = iter([torch.ones(4, 2), torch.zeros(4, 2)])

    class Loading(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self):
            batch = next(batches, torch.ones(4, 2))
            return self.model(batch / batch.sum())

    loading = Loading()
    with nncdbg.torch.watch(loading, optimizer, tier="live", on_nan="skip") as report:
        for _ in range(2):
            loading().sum().backward()
            optimizer.step()
    [bad] = report.bad_steps
    assert (bad.step, bad.origin.op, bad.origin.cause) == (2, "aten.div.Tensor", "zero divided by zero")


def test_operator_before_the_update_of_another_optimizer_has_its_line():
    torch.manual_seed(0)
    generator, judge = nn.Sequential(nn.Linear(3, 4), Root()), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (generator, judge)]
    models = {"generator": generator, "judge": judge}
    with nncdbg.torch.watch(models, optimizers, tier="live", on_nan="skip") as report:
        made = generator(torch.randn(5, 3))
        judge(made.detach()).square().mean().backward()
        optimizers[1].step()
        judge(made).square().mean().backward()
        optimizers[0].step()
    assert report.bad_steps[0].step == 2
    assert report.origin.site.graph.startswith("generator.1")
    assert report.origin.site.source_line == Root.forward.__code__.co_firstlineno + 1


def test_update_that_makes_inf_is_reported_without_a_second_run():
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=3e38)
    holder = nn.ParameterList([weight])
    with nncdbg.torch.watch(holder, optimizer, tier="live", on_nan="report") as report:
        (weight * 4).sum().backward()
        optimizer.step()
    [bad] = report.bad_steps
    assert (bad.where, bad.origin.op) == ("update", "aten.add_.Tensor")
    assert not any("keep" in note for note in bad.notes)


def test_operators_before_the_first_module_are_recorded():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nncdbg.torch.watch(model, optimizer, tier="live", on_nan="skip") as report:
        batch = (torch.tensor([[1.0, -1.0]])).log()
        model(batch).sum().backward()
        optimizer.step()
    assert report.origin.op == "aten.log.default"


@pytest.mark.parametrize("bad", [2, None])
def test_watched_training_is_bit_equal(bad):
    _, plain = train(bad=bad)
    _, watched = train(bad=bad, tier="live", on_nan="report")
    assert all(
        torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in zip(plain, watched, strict=True)
    )
    assert [each.isnan().sum() for each in plain] == [each.isnan().sum() for each in watched]


@pytest.mark.parametrize("first", ["guard", "live"])
def test_live_watch_inside_of_a_watch_is_refused(first):
    with nncdbg.torch.watch(tier=first), pytest.raises(UsageError, match="active already"):
        train(tier="live")


def watched(case, steps):
    training = case.build()
    with nncdbg.torch.watch(training.model, training.optimizers, tier="live", on_nan="report") as report:
        for _ in range(steps):
            training.step()
    return report


@pytest.mark.nightly
@pytest.mark.parametrize("case", [planted(case) for case in PLANTED])
def test_planted_value_is_reported_at_its_operator(case):
    report = watched(case, case.first_bad_step + 1)
    assert report.bad_steps[0].step == case.first_bad_step + 1
    assert differences(report.origin, case) == []


@pytest.mark.nightly
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CLEAN])
def test_clean_training_has_no_finding(case):
    assert watched(case, 3).ok


def test_nan_of_the_batch_is_found_before_the_update():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nncdbg.torch.watch(model, optimizer, tier="live", on_nan="skip") as report:
        model(torch.tensor([[1.0, float("nan")]])).sum().backward()
        optimizer.step()
    [bad] = report.bad_steps
    assert (bad.where, report.skipped, bad.origin.cause) == ("loss", 1, "bad input")
    assert all(bool(each.isfinite().all()) for each in model.parameters())


@pytest.fixture
def no_other_objects():
    """Hide the optimizers and models of other tests from the search for live objects."""
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("no_other_objects")
def test_models_that_are_made_later_have_names_and_earlier_ones_are_freed():
    def train_anew(*, broken):
        model = nn.Sequential(nn.Linear(3, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            loss = model(torch.ones(4, 3)).sum()
            (loss / (0.0 if broken and step == 2 else 1.0)).backward()
            optimizer.step()
        return weakref.ref(model)

    with nncdbg.torch.watch(tier="live", on_nan="report") as report:
        first = train_anew(broken=False)
        train_anew(broken=True)
        assert first() is None
    [bad] = report.bad_steps
    assert bad.step == 6
    assert {"0.weight", "0.bias"} <= {each.value.name for each in bad.recorded.program.states}


def test_breakpoint_of_the_script_is_no_finding(capsys):
    class Stopping(nn.Linear):
        def forward(self, x):
            nncdbg.breakpoint()
            return super().forward(x)

    with nncdbg.torch.watch(tier="live") as report:
        Stopping(2, 1)(torch.ones(1, 2)).sum().backward()
    assert report.ok
    assert "does not stop under `watch`" in capsys.readouterr().err


SCRIPT = """
import torch
net = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for number in range(3):
    output = net(torch.randn(8, 3))
    loss = (output - output.detach() if number == 1 else output).abs().log().mean()
    loss.backward()
    print("update", number)
    optimizer.step()
"""


def test_command_reports_the_operator_and_saves_it(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    assert main(["watch", "--tier", "live", "--on-nan", "raise", "--bundle", "op", "train.py"]) == 1
    output = capfd.readouterr().out
    assert "update 1" in output
    assert "update 2" not in output
    assert "cause: log of zero" in output
    assert main(["watch", "op"]) == 1
