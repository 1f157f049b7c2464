"""A step that runs again leaves what the script wrote between its modules as it was."""

import copy
import gc
import io
import pickle

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402

BAD = 2


class RootOfError(nn.Module):
    def forward(self, output):
        return (output - output.detach()).abs().sqrt().mean()


class Training:
    """A model, an average of its parameters, and a counter that is no parameter."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.average = copy.deepcopy(self.model)
        self.total = torch.zeros(2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, number, before, within, after):
        self.optimizer.zero_grad()
        before(self)
        output = self.model(torch.randn(8, 3))
        within(self)
        loss = RootOfError()(output) if number == BAD else output.square().mean()
        loss.backward()
        after(self)
        self.optimizer.step()

    def run(self, **writes):
        """Train; `writes` are functions of the training that run `before` and `within` and `after` a step."""
        places = {name: writes.get(name, lambda training: None) for name in ("before", "within", "after")}
        for number in range(4):
            self.step(number, **places)
        return [*self.model.state_dict().values(), *self.average.state_dict().values(), self.total]


def scale_row_of_data(training):
    training.model[0].weight.data[0] *= 0.5
    training.model[2].weight.data[0, 1] = 0.25


@torch.no_grad()
def clip_rows(training):
    training.model[0].weight[0].clamp_(-0.1, 0.1)
    training.model[0].weight[:, 1:].mul_(0.5)
    training.model[0].weight.clamp_(-0.2, 0.2)
    training.model[0].bias[0] = 0.2


@torch.no_grad()
def move_average(training):
    for mean, parameter in zip(training.average.parameters(), training.model.parameters(), strict=True):
        mean.mul_(0.9).add_(parameter, alpha=0.1)
    training.average[0].weight[0].lerp_(training.model[0].weight[0], 0.5)
    torch._foreach_mul_([*training.average.parameters()], 0.9)


def count(training):
    training.total += 1
    training.total[0] += 1
    training.average[1].running_mean[0] += 1


@pytest.mark.parametrize("place", ["before", "within", "after"])
@pytest.mark.parametrize("write", [scale_row_of_data, clip_rows, move_average, count])
def test_write_outside_of_modules_is_not_repeated(place, write):
    if place == "within" and write in (scale_row_of_data, clip_rows):
        place = "before"  # autograd refuses it between forward and backward pass, or computes another step
    plain = Training().run(**{place: write})
    training = Training()
    with nncdbg.torch.watch(training.model, training.optimizer, on_nan="report") as report:
        watched = training.run(**{place: write})
    bad = report.bad_steps[0]
    assert bad.step == BAD + 1
    assert bad.notes == []
    assert bad.origin.site.node == "SqrtBackward0"
    assert all(torch.equal(a, b) or a.isnan().any() for a, b in zip(plain, watched, strict=True))
    assert [each.isnan().sum() for each in plain] == [each.isnan().sum() for each in watched]


@pytest.mark.parametrize("part", [slice(None), 0])
def test_loss_that_is_added_to_an_older_tensor_keeps_its_gradient(part):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(2, 3)).sum().backward()
    older = torch.zeros(2)
    with nncdbg.torch.watch(model, optimizer, on_nan="report") as report:
        total = older.clone() if part else older
        total[part] += RootOfError()(model(torch.randn(8, 3)))
        total.sum().backward()
        optimizer.step()
    assert report.bad_steps[0].notes == []
    assert report.origin.site.node == "SqrtBackward0"


def reloaded(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


class Described(nn.Linear):
    def __getstate__(self):
        return self.__dict__ | {"described": True}


def assert_has_only_the_users_hook(module):
    assert list(module._forward_hooks.values()) == [forward_hook]
    assert not any(each._forward_hooks for each in module.children())
    assert not any(each._forward_pre_hooks for each in module.modules())
    assert not module._forward_hooks_with_kwargs


@pytest.mark.parametrize("tier", ["guard", "hooks", "live"])
@pytest.mark.parametrize("copied", [copy.deepcopy, reloaded, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("model", [nn.Sequential(nn.Linear(3, 2)), Described(3, 2)])
def test_copy_of_a_watched_module_has_the_hooks_of_the_user_alone(tier, copied, model):
    with nncdbg.torch.watch(tier=tier):
        handle = model.register_forward_hook(forward_hook)
        model(torch.ones(1, 3)).sum().backward()
        other = copied(model)
        handle.remove()
    assert_has_only_the_users_hook(other)
    assert torch.equal(other(torch.ones(1, 3)), model(torch.ones(1, 3)))
    assert not model._forward_hooks
    assert "__reduce_ex__" not in vars(nn.Module)


@pytest.mark.parametrize("copied", [copy.deepcopy, reloaded])
def test_copy_of_a_recorded_module_has_the_hooks_of_the_user_alone(copied):
    model = nn.Sequential(nn.Linear(3, 2))
    handle = model.register_forward_hook(forward_hook)
    with nncdbg.torch.watch(model), nncdbg.torch.record(model):
        model(torch.ones(1, 3))
        other = copied(model)
    handle.remove()
    assert_has_only_the_users_hook(other)
    assert not model._forward_hooks
    assert "__reduce_ex__" not in vars(nn.Module)


def test_module_is_copied_after_another_watched_one_was_freed():
    with nncdbg.torch.watch():
        nn.Linear(3, 2)(torch.ones(1, 3)).sum().backward()
        gc.collect()
        other = nn.Linear(3, 2, bias=False)
        assert copy.deepcopy(other).bias is None


def forward_hook(module, args, result):
    return None


def report_of(draw):
    """Return the report of a step with NaN gradients whose batch is `draw()`, and its loss."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nncdbg.torch.watch(model, optimizer, on_nan="report") as report:
        output = model(draw())
        loss = RootOfError()(output) + output.square().sum()
        loss.backward()
        optimizer.step()
    return report, loss.item()


def draw_after_fill():
    noise = torch.zeros(4, 3).uniform_()
    torch.nn.init.normal_(NOISE)
    return torch.randn(4, 3) + noise


def draw_after_module_without_gradient():
    with torch.no_grad():
        nn.Sequential(nn.Linear(3, 3), nn.Dropout())(torch.ones(4, 3))
    return torch.randn(4, 3)


def draw_after_seed():
    torch.manual_seed(3)
    return torch.randn(4, 3)


NOISE = torch.zeros(2, 2)


@pytest.mark.parametrize("draw", [draw_after_fill, draw_after_module_without_gradient, draw_after_seed])
def test_second_run_draws_the_numbers_of_the_first(draw):
    report, loss = report_of(draw)
    debugger = nncdbg.Debugger(report.bad_steps[0].recorded)
    debugger.run()
    assert debugger.outputs is not None
    assert debugger.outputs["loss"] == loss


def test_bad_part_of_an_accumulated_gradient_is_reported_once_without_checks_as_statements():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nncdbg.torch.watch(model, optimizer, on_nan="report") as report:
        for batch in (torch.ones(2, 3), torch.full((2, 3), float("nan")), torch.ones(2, 3)):
            model(batch).square().mean().backward()
        optimizer.step()
    (bad,) = report.bad_steps
    names = {node.op for graph in bad.recorded.program.graphs.values() for node in graph.nodes}
    assert not {name for name in names if "isnan" in name or "isinf" in name}


def test_gradient_that_the_script_assigns_is_an_output_of_the_step() -> None:
    """A NaN in `parameter.grad = ...` has an effect, as one that a backward pass adds to a gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = dict(model.named_parameters())

    def loss(weights, x):
        return torch.func.functional_call(model, weights, (x,)).sum()

    with nncdbg.torch.watch(model, optimizer, on_nan="report") as report:
        each = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, torch.zeros(4, 3))
        gradient = each["0.weight"]
        model[0].weight.grad = (gradient / gradient.norm()).mean(0)
        optimizer.step()
    (bad,) = report.bad_steps
    (first,) = [finding for finding in bad.report.findings if finding.first]
    assert (first.site.op, first.role) == ("aten.div.Tensor", "birth")
    assert first.cause == "zero divided by zero"
    assert any(finding.site.value == "0.weight.grad" for finding in bad.report.findings)
