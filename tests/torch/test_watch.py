"""`nncdbg.torch.watch` reports the origin, and reacts as requested."""

import weakref
from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402
from nncdbg.errors import UsageError  # noqa: E402


class RootOfError(nn.Module):
    """A loss whose gradient is Inf where an error is 0."""

    def forward(self, output, target):
        return (output - target).abs().sqrt().mean()


def run(model, optimizer, steps=4, bad=2, **options):
    """Train with a perfect prediction, and so a NaN gradient, in the step `bad`; return the report."""
    loss_of = RootOfError()
    torch.manual_seed(0)
    with nncdbg.torch.watch(model, optimizer, **options) as report:
        for step in range(steps):
            output = model(torch.randn(8, 3))
            target = torch.randn(8, 1)
            if step == bad:
                target[5] = output[5].detach()
            optimizer.zero_grad()
            loss_of(output, target).backward()
            optimizer.step()
    return report


@pytest.fixture
def training():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def test_raise_names_the_op_and_line_of_the_origin(training):
    with pytest.raises(nncdbg.torch.NaNFound) as caught:
        run(*training)
    bad = caught.value.bad_step
    assert (bad.step, bad.where) == (3, "gradients")
    assert bad.origin.op == "aten.div.Tensor"
    assert bad.origin.site.node == "SqrtBackward0"
    line = RootOfError.forward.__code__.co_firstlineno + 1
    assert (bad.origin.site.file, bad.origin.site.source_line) == ("tests/torch/test_watch.py", line)
    assert "aten.div.Tensor" in str(caught.value)
    assert caught.value.report.bad_steps == [bad]


def test_training_goes_on_after_nan_was_caught(training):
    with pytest.raises(nncdbg.torch.NaNFound):
        run(*training)
    model, optimizer = training
    assert run(model, optimizer, bad=None).ok


def test_report_prints_the_origin_once_and_goes_on(training, capsys):
    report = run(*training, on_nan="report")
    assert [bad.step for bad in report.bad_steps] == [3]
    assert (report.steps, report.repeated) == (4, 1)
    assert capsys.readouterr().err.count("aten.div.Tensor produced it") == 1
    assert "tripped: NaN or Inf in 2 steps" in str(report)


def test_skip_leaves_parameters_and_moments_as_they_were(training):
    model, optimizer = training
    report = run(model, optimizer, on_nan="skip")
    assert (report.skipped, report.repeated) == (1, 0)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    assert {int(state["step"]) for state in optimizer.state.values()} == {3}


def test_recorded_step_opens_in_the_debugger(training):
    report = run(*training, on_nan="report")
    recorded = report.bad_steps[0].recorded
    debugger = nncdbg.Debugger(recorded.program, recorded.inputs, backend="torch")
    debugger.break_at(line=report.origin.line)
    stop = debugger.run()
    assert stop.node is not None
    assert stop.node.op == "aten.div.Tensor"


def test_optimizer_is_blamed_for_a_parameter_that_it_makes_infinite():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e38)
    with nncdbg.torch.watch(model, optimizer, on_nan="report") as report:
        (model(torch.full((1, 2), 1e3)).sum()).backward()
        optimizer.step()
    assert report.bad_steps[0].where == "update"
    assert str(report.bad_steps[0]).startswith("step 1: SGD (lr 1e+38) made NaN or Inf from finite gradients")
    assert [*report.bad_steps[0].bad] == ["weight"]


def test_infinite_parameter_is_named_although_the_nan_originates_later():
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        model[0].weight[0, 1] = float("inf")
    with nncdbg.torch.watch(model, optimizer, on_nan="report") as report:
        for second in (1.0, 0.0):
            model(torch.tensor([[1.0, second]])).square().sum().backward()
            optimizer.step()
    assert [bad.where for bad in report.bad_steps] == ["loss"]
    assert report.origin.cause == "bad parameter"
    assert report.origin.evidence.startswith("%0.weight has 1 Inf among 4 elements")


@pytest.mark.parametrize("clipped", [False, True])
def test_parameter_that_is_nan_before_the_step_is_no_bad_input(clipped):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        model.weight[0, 1] = float("nan")
    with nncdbg.torch.watch(model, optimizer, on_nan="report") as report:
        model(torch.randn(4, 2)).sum().backward()
        if clipped:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert report.origin.cause == "bad parameter"
    assert report.bad_steps[0].notes == []


def test_without_arguments_all_that_trains_is_watched(training):
    model, optimizer = training
    loss_of = RootOfError()
    with nncdbg.torch.watch(on_nan="report") as report:
        output = model(torch.randn(8, 3))
        loss_of(output, output.detach()).backward()
        optimizer.step()
    assert report.origin.site.node == "SqrtBackward0"
    assert "0.weight.grad" in report.bad_steps[0].bad


def test_closure_of_lbfgs_is_checked_and_runs_again():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters())
    x = torch.randn(4, 2)

    def closure():
        optimizer.zero_grad()
        loss = torch.log(model(x) - model(x)).sum()
        loss.backward()
        return loss

    with nncdbg.torch.watch(model, optimizer, on_nan="report") as report:
        optimizer.step(closure)
    assert report.bad_steps[0].where == "loss"
    assert report.origin.op == "aten.log.default"


def test_closure_that_runs_again_leaves_buffers_as_they_were():
    def trained(on_nan):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(4, 2)

        def closure():
            optimizer.zero_grad()
            loss = torch.log(model(x) - model(x)).sum()
            loss.backward()
            return loss

        if on_nan is None:
            optimizer.step(closure)
            return model[1].running_mean
        with nncdbg.torch.watch(optimizer=optimizer, on_nan=on_nan) as report:
            optimizer.step(closure)
        assert report.origin.op == "aten.log.default"
        return model[1].running_mean

    assert torch.equal(trained(None), trained("report"))


def scaled(model, optimizer, scaler, batches):
    for x in batches:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("fused", [False, True])
def test_overflow_that_a_scaler_handles_is_no_alarm(fused):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1)
    with nncdbg.torch.watch(model, optimizer, on_nan="raise") as report:
        scaled(model, optimizer, scaler, [torch.full((2, 2), 100.0)] * 12)
    assert report.ok
    assert report.skipped_by_scaler >= fused


def test_loss_of_nan_is_an_alarm_although_the_scaler_skips_the_update():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    bad = torch.tensor([[float("nan"), 1.0]])
    with nncdbg.torch.watch(model, optimizer, on_nan="report") as report:
        scaled(model, optimizer, scaler, [torch.ones(1, 2), bad])
    assert [step.where for step in report.bad_steps] == ["loss"]


def test_step_number_counts_the_steps_that_a_scaler_skips():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-120)
    bad = torch.tensor([[float("nan"), 1.0]])
    good = torch.ones(1, 2)
    with nncdbg.torch.watch(model, optimizer, on_nan="report") as report:
        scaled(model, optimizer, scaler, [good * 100, good, bad, good, bad])
    assert (report.steps, report.skipped_by_scaler) == (2, 3)
    assert report.repeated == 1
    assert [step.step for step in report.bad_steps] == [3]


@pytest.mark.parametrize("fused", [False, True])
def test_loss_of_nan_is_found_in_the_skipped_step_itself(fused):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with nncdbg.torch.watch(model, optimizer, on_nan="report") as report:
        scaled(model, optimizer, scaler, [torch.ones(1, 2), torch.full((1, 2), float("nan"))])
        assert [(each.step, each.origin.cause) for each in report.bad_steps] == [(2, "bad input")]


def test_gradients_that_a_scaler_skips_again_and_again_are_a_finding():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with nncdbg.torch.watch(model, optimizer, on_nan="report") as report:
        for _ in range(25):
            optimizer.zero_grad()
            output = model(torch.ones(4, 3))
            scaler.scale(RootOfError()(output, output.detach())).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    assert (report.steps, report.skipped_by_scaler, report.repeated) == (0, 25, 5)
    assert [(each.step, each.origin.site.node) for each in report.bad_steps] == [(20, "SqrtBackward0")]


def test_overflow_that_a_scaler_of_two_optimizers_handles_is_no_alarm():
    models = {"first": nn.Linear(3, 2), "second": nn.Linear(2, 1)}
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in models.values()]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with nncdbg.torch.watch(models, optimizers, on_nan="raise") as report:
        for step in range(4):
            output = models["second"](models["first"](torch.randn(4, 3)))
            loss = output.square().mean() * (1e38 if step == 1 else 1)
            scaler.scale(loss).backward()
            for each in optimizers:
                scaler.step(each)
                each.zero_grad()
            scaler.update()
    assert (report.ok, report.steps, report.skipped_by_scaler) == (True, 6, 2)


@pytest.mark.parametrize("named", [False, True])
def test_nan_of_the_second_optimizer_leads_through_both_models(named):
    models = {"generator": nn.Linear(2, 3), "critic": nn.Linear(3, 1)}
    optimizers = {name: torch.optim.Adam(each.parameters()) for name, each in models.items()}
    options = (models, [*optimizers.values()]) if named else ()
    with nncdbg.torch.watch(*options, on_nan="report") as report:
        for step in range(3):
            output = models["generator"](torch.randn(4, 2))
            models["critic"](output.detach()).square().mean().backward()
            optimizers["critic"].step()
            optimizers["generator"].zero_grad()
            score = models["critic"](output)
            loss = RootOfError()(score, score.detach()) if step == 1 else score.mean()
            loss.backward()
            optimizers["generator"].step()
            optimizers["critic"].zero_grad()
    bad = report.bad_steps[0]
    assert (bad.step, bad.notes, bad.origin.site.node) == (4, [], "SqrtBackward0")
    assert all("weight.grad" in name or "bias.grad" in name for name in bad.bad)


@pytest.mark.filterwarnings("error")
def test_nan_that_is_found_in_a_skipped_step_leaves_no_warning():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    bad = torch.tensor([[float("nan"), 1.0]])
    with pytest.raises(nncdbg.torch.NaNFound), nncdbg.torch.watch(model, optimizer, on_nan="raise"):
        scaled(model, optimizer, scaler, [torch.ones(1, 2), bad, torch.ones(1, 2)])


def test_accumulated_gradient_names_the_part_that_is_bad(training):
    model, optimizer = training
    loss_of = RootOfError()
    with nncdbg.torch.watch(model, optimizer, on_nan="report") as report:
        for part in range(4):
            output = model(torch.randn(8, 3))
            target = output.detach() if part == 2 else torch.randn(8, 1)
            loss_of(output, target).backward()
        optimizer.step()
    assert report.origin.site.node == "SqrtBackward0"
    text = report.bad_steps[0].recorded.program.text()
    assert "@backward.2" in text
    assert "@backward.3" not in text


def accumulate(prepared, after=None):
    """Accumulate gradients of three parts, each with a batch that `prepared` computes; return the report."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nncdbg.torch.watch(on_nan="report") as report:
        for step in range(2):
            optimizer.zero_grad()
            for part in range(3):
                output = model(prepared(torch.randn(4, 3), bad=(step, part) == (1, 2)))
                output.square().mean().backward()
                if after is not None:
                    after(output)
            optimizer.step()
    return report


def test_batch_of_a_later_part_is_computed_again():
    def prepared(x, bad):
        return x / (x * 0).sum() if bad else x / x.std()

    [bad] = accumulate(prepared).bad_steps
    assert bad.origin.op == "aten.div.Tensor"
    assert bad.origin.site.source_line == prepared.__code__.co_firstlineno + 1


def test_result_of_an_earlier_part_is_not_kept():
    results: list[Any] = []
    alive, accuracies = [], []

    def prepared(x, bad):
        alive.append(sum(each() is not None for each in results))
        return x * 2

    def after(output):
        results.append(weakref.ref(output))
        accuracies.append((output.argmax(-1) == 0).float().mean())

    assert accumulate(prepared, after).ok
    assert max(alive) <= 1


def test_step_that_raises_is_forgotten(training):
    model, optimizer = training
    with nncdbg.torch.watch(model, optimizer, on_nan="report") as report:
        with pytest.raises(RuntimeError):
            model(torch.randn(8, 5))
        with pytest.raises(ZeroDivisionError):
            optimizer.step(lambda: 1 / 0)
        output = model(torch.randn(8, 3))
        RootOfError()(output, output.detach()).backward()
        optimizer.step()
    assert report.origin.site.node == "SqrtBackward0"


def test_dispatch_mode_inside_of_a_watch_sees_the_operators_of_the_step(training):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Listing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    def operators():
        seen.clear()
        with Listing():
            optimizer.zero_grad()
            model(torch.ones(8, 3)).square().mean().backward()
            optimizer.step()
        return list(seen)

    seen = []
    model, optimizer = training
    operators()
    plain = operators()
    with nncdbg.torch.watch(model, optimizer):
        operators()
        watched = operators()
    marks = [each for each in plain if each.startswith("profiler.")]
    assert marks
    assert Counter(plain) - Counter(watched) == Counter(marks)
    assert operators() == plain


def test_watch_ends_without_a_trace(training):
    model, optimizer = training
    before = torch.nn.Module.__call__, torch.autograd.backward, torch.autograd.Function.__dict__["apply"]
    run(model, optimizer, bad=None)
    after = torch.nn.Module.__call__, torch.autograd.backward, torch.autograd.Function.__dict__["apply"]
    assert before == after
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tier": "hook"}, "there is no tier 'hook': use guard, hooks, native, live"),
        ({"on_nan": "rise"}, "there is no on_nan 'rise': use raise, report, skip, stop"),
    ],
)
def test_unknown_option_names_what_exists(training, options, message):
    with pytest.raises(UsageError, match=message):
        run(*training, **options)


def test_watch_inside_of_a_watch_is_refused(training):
    with nncdbg.torch.watch(*training), pytest.raises(UsageError, match="a watch is active already"):
        run(*training)


def test_step_function_without_a_watch_is_the_function():
    assert nncdbg.torch.step(lambda x: x + 1)(2) == 3
