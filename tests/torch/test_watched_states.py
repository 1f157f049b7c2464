"""A NaN or Inf in a state is reported in the step that makes it, with operator and line, in each tier."""

from __future__ import annotations

import copy
import gc
import inspect
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402
from torch._functorch.aot_autograd import aot_function  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import nncdbg.torch  # noqa: E402
from nncdbg.nan_watch.training.records import BadStep, TrainingReport  # noqa: E402
from nncdbg.torch.guard import may_be_of_nan  # noqa: E402
from nncdbg.torch.recording import Event  # noqa: E402
from nncdbg.torch.step_function import ACTIVE  # noqa: E402

BAD = 3
"""The step that makes a NaN or Inf."""

TIERS = ("guard", "hooks", "native", "live")


class Net(nn.Module):
    """A model with states of all kinds; `write` changes one with a row of numbers."""

    def __init__(self, write: Callable[[Any, Any], None], broken: Callable[[Any], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))
        self.register_buffer("average", torch.zeros(3))
        self.book = nn.Parameter(torch.ones(3), requires_grad=False)
        self.cache = torch.ones(3)
        self.queue = [torch.zeros(3), torch.zeros(3)]
        self.memory = {"last": torch.zeros(3)}
        self.calls = 0
        self.write, self.broken = write, broken

    def forward(self, x: Any) -> Any:
        self.calls += 1
        y = self.linear(x)
        row = y.detach().mean(0)
        if self.calls == BAD:
            row = self.broken(row)
        self.write(self, row)
        return y


def zero_by_zero(row: Any) -> Any:
    return (row * 0) / (row * 0)


def overflow(row: Any) -> Any:
    return row * 1e30 * 1e30


def average(net: Any, row: Any) -> None:
    net.average.mul_(0.5).add_(row)


def new_average(net: Any, row: Any) -> None:
    net.average = net.average * 0.5 + row


def average_by_data(net: Any, row: Any) -> None:
    net.average.data.mul_(0.5).add_(row)


def cache(net: Any, row: Any) -> None:
    net.cache.mul_(0.5).add_(row)


def new_cache(net: Any, row: Any) -> None:
    net.cache = net.cache * 0.5 + row


def queue(net: Any, row: Any) -> None:
    net.queue[1].copy_(row)


def new_in_queue(net: Any, row: Any) -> None:
    net.queue[1] = row


def memory(net: Any, row: Any) -> None:
    net.memory["last"] = row


def book(net: Any, row: Any) -> None:
    net.book.mul_(0.5).add_(row)


def book_by_data(net: Any, row: Any) -> None:
    net.book.data.copy_(row)


STATES: dict[Callable[[Any, Any], None], str] = {
    average: "average",
    new_average: "average",
    average_by_data: "average",
    cache: "cache",
    new_cache: "cache",
    queue: "queue.1",
    new_in_queue: "queue.1",
    memory: "memory.last",
    book: "book",
    book_by_data: "book",
}
"""Writes, and the names of the states that they change."""


def watched(model: Any, steps: int = BAD + 2, tier: str = "guard") -> TrainingReport:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nncdbg.torch.watch(model, optimizer, on_nan="report", tier=tier) as report:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    return report


def line_of(function: Any) -> int:
    """Return the line of the only statement of a function."""
    return inspect.getsourcelines(function)[1] + 1


def check(report: TrainingReport, step: int, op: str, cause: str, line: int) -> BadStep:
    [bad] = report.bad_steps
    assert (bad.step, bad.where) == (step, "states")
    assert bad.origin is not None, bad.notes
    assert (bad.origin.op, bad.origin.cause, bad.origin.site.source_line) == (op, cause, line)
    return bad


@pytest.mark.parametrize("write", STATES, ids=lambda write: write.__name__)
def test_the_step_that_makes_a_state_nan_is_reported(write: Callable[[Any, Any], None]) -> None:
    net = Net(write, zero_by_zero)
    bad = check(watched(net), BAD, "aten.div.Tensor", "zero divided by zero", line_of(zero_by_zero))
    assert bad.bad == {STATES[write]: "3 NaN of 3"}
    assert net.calls == BAD + 2


@pytest.mark.parametrize("tier", TIERS[1:])
@pytest.mark.parametrize("write", [average, new_cache], ids=lambda write: write.__name__)
def test_each_tier_reports_a_state(write: Callable[[Any, Any], None], tier: str) -> None:
    report = watched(Net(write, zero_by_zero), tier=tier)
    check(report, BAD, "aten.div.Tensor", "zero divided by zero", line_of(zero_by_zero))


@pytest.mark.parametrize("tier", TIERS)
def test_inf_in_a_state_is_reported_as_nan_is(tier: str) -> None:
    report = watched(Net(average, overflow), tier=tier)
    bad = check(report, BAD, "aten.mul.Tensor", "overflow", line_of(overflow))
    assert bad.bad == {"average": "3 Inf of 3"}


@pytest.mark.parametrize("tier", TIERS)
def test_a_variance_that_overflows_is_reported_in_its_step(tier: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(8, 4)
    with nncdbg.torch.watch(model, optimizer, on_nan="report", tier=tier) as report:
        for number in range(1, 5):
            optimizer.zero_grad()
            model(x * (1e25 if number == BAD else 1)).square().mean().backward()
            optimizer.step()
    [bad] = report.bad_steps
    assert (bad.step, bad.bad) == (BAD, {"1.running_var": "4 Inf of 4"})
    assert bad.origin is not None
    assert bad.origin.op == "aten.native_batch_norm.default"


class Codebook(nn.Module):
    """The codebook of a VQ-VAE by moving averages; a code that is never chosen is 0 / 0."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 2)
        self.register_buffer("code", torch.randn(3, 2))
        self.register_buffer("size", torch.zeros(3))
        self.register_buffer("sum", torch.zeros(3, 2))

    def forward(self, x: Any) -> Any:
        z = self.encoder(x)
        chosen = torch.cdist(z.detach(), self.code).argmin(1)
        picked = self.code[chosen]
        one = nn.functional.one_hot(chosen, 3).float()
        self.size.mul_(0.9).add_(one.sum(0))
        self.sum.mul_(0.9).add_(one.T @ z.detach())
        self.code.copy_(self.sum / self.size[:, None])
        return z - picked


@pytest.mark.parametrize("tier", TIERS)
def test_a_nan_of_the_next_step_is_no_second_finding(tier: str) -> None:
    torch.manual_seed(0)
    model = Codebook()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(2, 4)
    with nncdbg.torch.watch(model, optimizer, on_nan="report", tier=tier) as report:
        for _ in range(4):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    line = (
        inspect.getsource(Codebook)
        .splitlines()
        .index("        self.code.copy_(self.sum / self.size[:, None])")
        + inspect.getsourcelines(Codebook)[1]
    )
    check(report, 1, "aten.div.Tensor", "zero divided by zero", line)
    assert report.repeated > 0


def new_mask(net: Any, row: Any) -> None:
    net.mask = torch.full((3, 3), -torch.inf).triu(1)


def filled_mask(net: Any, row: Any) -> None:
    net.average.fill_(-torch.inf if net.calls % 2 else 0)


def masked_queue(net: Any, row: Any) -> None:
    net.cache.copy_(row).masked_fill_(row > 0, torch.inf)


def missing_values(net: Any, row: Any) -> None:
    net.queue[0] = torch.full((3,), torch.nan)


def masked_scores(net: Any, row: Any) -> None:
    net.scores = row + net.mask


@pytest.mark.parametrize(
    "write",
    [new_mask, filled_mask, masked_queue, missing_values, masked_scores],
    ids=lambda write: write.__name__,
)
@pytest.mark.parametrize("tier", ["guard", "live"])
def test_intended_infinities_and_gaps_are_no_finding(tier: str, write: Callable[[Any, Any], None]) -> None:
    assert watched(Net(write, torch.neg), tier=tier).ok


def test_a_second_run_leaves_states_and_attributes_as_they_were() -> None:
    class Counting(Net):
        def forward(self, x: Any) -> Any:
            self.cache.add_(1)
            self.queue = [*self.queue[1:], self.cache.clone()]
            return super().forward(x)

    net = Counting(average, zero_by_zero)
    report = watched(net, BAD)
    assert not report.ok
    assert net.calls == BAD
    assert net.cache.tolist() == [1.0 + BAD] * 3
    assert [each[0].item() for each in net.queue] == [BAD, BAD + 1]


# -- what the script writes between updates ---------------------------------------------------


class Training:
    """A training with states outside of its model; `write` runs before or after each update."""

    def __init__(self, write: Callable[[Any, Any], None], *, before_update: bool) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.average = {name: each.detach().clone() for name, each in self.model.named_parameters()}
        self.teacher = copy.deepcopy(self.model).requires_grad_(False)
        self.queue = torch.zeros(4, 8)
        self.write, self.before_update = write, before_update
        self.number = 0

    def step(self, x: Any) -> None:
        self.number += 1
        self.optimizer.zero_grad()
        self.model(x).square().mean().backward()
        if not self.before_update:
            self.optimizer.step()
        with torch.no_grad():
            self.write(self, torch.zeros(()) if self.number == BAD else torch.ones(()))
        if self.before_update:
            self.optimizer.step()

    @property
    def weight(self) -> Any:
        return self.model[0].weight


def normalized(training: Any, one: Any) -> None:
    training.weight.div_(training.weight.mul(one).norm(dim=1, keepdim=True))


def copied(training: Any, one: Any) -> None:
    training.weight.copy_(training.weight / one)


def one_row(training: Any, one: Any) -> None:
    training.weight[2] /= one


def by_data(training: Any, one: Any) -> None:
    training.weight.data.div_(one)


def list_of_parameters(training: Any, one: Any) -> None:
    torch._foreach_div_([*training.model.parameters()], one)


def moving_average(training: Any, one: Any) -> None:
    for name, each in training.model.named_parameters():
        training.average[name].mul_(0.9).add_(each / one, alpha=0.1)


def teacher(training: Any, one: Any) -> None:
    for average, each in zip(training.teacher.parameters(), training.model.parameters(), strict=True):
        average.lerp_(each / one, 0.1)


def part_of_queue(training: Any, one: Any) -> None:
    training.queue[1:2] = training.model[0].bias / one


WRITES = {
    normalized: "aten.div_.Tensor",
    copied: "aten.div.Tensor",
    one_row: "aten.div_.Tensor",
    by_data: "aten.div_.Tensor",
    list_of_parameters: "aten._foreach_div_.Tensor",
    moving_average: "aten.div.Tensor",
    teacher: "aten.div.Tensor",
    part_of_queue: "aten.div.Tensor",
}
"""Writes, and the operators that make Inf there."""


def report_of(training: Training, tier: str, steps: int = BAD + 2, **options: Any) -> TrainingReport:
    with nncdbg.torch.watch(
        training.model, training.optimizer, on_nan="report", tier=tier, **options
    ) as report:
        for _ in range(steps):
            training.step(torch.randn(16, 4))
    return report


def check_write(report: TrainingReport, write: Any, *, before_update: bool) -> None:
    bad = report.bad_steps[0]
    # A step begins after the update before it.
    assert (bad.step, bad.where) == (BAD if before_update else BAD + 1, "states")
    assert bad.origin is not None, bad.notes
    assert bad.origin.op == WRITES[write]
    assert bad.origin.cause == "division by zero"
    first = inspect.getsourcelines(write)[1]
    assert bad.origin.site.source_line is not None
    assert first < bad.origin.site.source_line < first + 4
    assert all(each.where != "update" for each in report.bad_steps)


@pytest.mark.parametrize("before_update", [True, False], ids=["before_update", "after_update"])
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
def test_a_write_between_updates_is_named_and_not_the_optimizer(write: Any, before_update: bool) -> None:
    report = report_of(Training(write, before_update=before_update), "guard")
    check_write(report, write, before_update=before_update)


@pytest.mark.parametrize("tier", TIERS[1:])
def test_each_tier_names_a_write_between_updates(tier: str) -> None:
    report = report_of(Training(normalized, before_update=False), tier)
    check_write(report, normalized, before_update=False)


@pytest.mark.parametrize("write", [by_data, moving_average], ids=lambda write: write.__name__)
def test_a_second_run_makes_the_writes_of_a_step_once(write: Any) -> None:
    """All is as without the watch, also after a step that runs again."""

    def run(training: Training) -> list[Any]:
        for _ in range(BAD + 1):
            training.step(torch.ones(16, 4) * training.number)
        return [*training.model.parameters(), *training.average.values()]

    expected = run(Training(write, before_update=True))
    training = Training(write, before_update=True)
    with nncdbg.torch.watch(training.model, training.optimizer, on_nan="report") as report:
        found = run(training)
    assert not report.ok
    for each, wanted in zip(found, expected, strict=True):
        assert torch.equal(each.nan_to_num(), wanted.nan_to_num())


def clipped(training: Any, one: Any) -> None:
    for each in training.model.parameters():
        each.data.clamp_(-0.5, 0.5)


def scaled_gradients(training: Any, one: Any) -> None:
    for each in training.model.parameters():
        each.grad.div_(2)


def reset_mask(training: Any, one: Any) -> None:
    training.queue.fill_(-torch.inf if training.number % 2 else 0)


def new_weights(training: Any, one: Any) -> None:
    nn.init.normal_(training.weight)


@pytest.mark.parametrize(
    "write", [clipped, scaled_gradients, reset_mask, new_weights], ids=lambda write: write.__name__
)
@pytest.mark.parametrize("tier", ["guard", "live"])
def test_usual_writes_between_updates_are_no_finding(tier: str, write: Any) -> None:
    assert report_of(Training(write, before_update=True), tier).ok


# -- steps that end by an exception -----------------------------------------------------------


class Failing(nn.Module):
    """A model whose logits are NaN in step `BAD`; `end` gets them, and raises there."""

    def __init__(self, end: Callable[[Any], Any], *, inside: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.end, self.inside = end, inside
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        y = self.linear(x)
        norm = y.norm(dim=1, keepdim=True) * (self.calls != BAD)
        y = y / norm * (norm * 0 if self.calls == BAD else 1)
        return self.end(y) if self.inside else y


DIVISION = inspect.getsourcelines(Failing)[1] + inspect.getsource(Failing).splitlines().index(
    "        y = y / norm * (norm * 0 if self.calls == BAD else 1)"
)


def categorical(logits: Any) -> Any:
    # The compiler switches the checks of distributions off if it compiles one.
    return torch.distributions.Categorical(logits=logits, validate_args=True).entropy()


def multinomial(logits: Any) -> Any:
    return logits + torch.multinomial(logits.softmax(-1), 1)


def cross_entropy(logits: Any) -> Any:
    return nn.functional.binary_cross_entropy(logits.sigmoid(), torch.rand(8, 3))


def singular_values(logits: Any) -> Any:
    return torch.linalg.svdvals(logits)


def exits(logits: Any) -> Any:
    if logits.isnan().any():
        raise SystemExit("the loss is NaN")
    return logits


def failing(end: Any, tier: str, *, inside: bool) -> tuple[TrainingReport, BaseException]:
    torch.manual_seed(0)
    model = Failing(end, inside=inside)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        for _ in range(BAD):
            optimizer.zero_grad()
            y = model(torch.randn(8, 4))
            (y if inside else end(y)).square().mean().backward()
            optimizer.step()

    with pytest.raises(ERRORS[end]) as caught, nncdbg.torch.watch(model, optimizer, tier=tier) as report:
        train()
    return report, caught.value


ERRORS = {
    categorical: ValueError,
    multinomial: RuntimeError,
    cross_entropy: RuntimeError,
    singular_values: RuntimeError,
    exits: SystemExit,
}


def check_failed(end: Any, tier: str, *, inside: bool) -> None:
    report, error = failing(end, tier, inside=inside)
    [bad] = report.bad_steps
    assert (bad.step, bad.where, bad.error) == (BAD, "error", type(error).__name__)
    assert bad.origin is not None, bad.notes
    assert bad.origin.op == "aten.div.Tensor"
    assert bad.origin.site.source_line == DIVISION
    assert str(bad).startswith(f"step {BAD}: NaN or Inf before {type(error).__name__}")


@pytest.mark.parametrize("inside", [False, True], ids=["in_script", "in_module"])
@pytest.mark.parametrize("end", ERRORS, ids=lambda end: end.__name__)
def test_a_nan_before_an_exception_is_named(end: Any, inside: bool) -> None:
    check_failed(end, "guard", inside=inside)


@pytest.mark.parametrize("tier", TIERS[1:])
def test_each_tier_names_a_nan_before_an_exception(tier: str) -> None:
    check_failed(categorical, tier, inside=False)


def test_an_exception_without_nan_is_no_finding() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mask = torch.full((3,), -torch.inf)

    def step() -> None:
        y = model(torch.randn(8, 4))
        scores = torch.where(y > 100, mask, y).softmax(-1) + (y + mask).exp()
        torch.where(y > 0, y.log(), 0.0)
        scores @ scores

    with pytest.raises(RuntimeError, match="mat1 and mat2"), nncdbg.torch.watch(model, optimizer) as report:
        step()
    assert report.ok


def raises(x: Any) -> Any:
    y = x * 2
    raise ValueError(f"{y.ndim} dimensions")


def in_vmap(x: Any) -> Any:
    return torch.vmap(raises)(x)


def in_grad(x: Any) -> Any:
    return torch.func.grad(raises)(x)


def in_functionalize(x: Any) -> Any:
    return torch.func.functionalize(raises)(x)


def without_data(x: Any) -> Any:
    with FakeTensorMode(allow_non_fake_inputs=True):
        return raises(x)


def in_trace(x: Any) -> Any:
    return make_fx(raises)(x)


def in_export(x: Any) -> Any:
    module = nn.Module()
    module.forward = raises
    return torch.export.export(module, (x,), strict=False)


def in_aot_autograd(x: Any) -> Any:
    return aot_function(raises, fw_compiler=lambda graph, _: graph)(x)


@pytest.mark.parametrize("tier", ["guard", "live"])
@pytest.mark.parametrize(
    "call",
    [in_vmap, in_grad, in_functionalize, without_data, in_trace, in_export, in_aot_autograd],
    ids=lambda call: call.__name__,
)
def test_an_exception_in_a_transformed_or_traced_function_stays(call: Any, tier: str) -> None:
    """Its frames have tensors whose elements cannot be read as those of others."""
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(torch.ones(2, 4)).sum().backward()
        call(torch.ones(2, 4))

    with (
        pytest.raises(ValueError, match="dimensions"),
        nncdbg.torch.watch(model, optimizer, tier=tier) as report,
    ):
        step()
    assert report.ok


def test_a_nan_of_a_batch_of_vmap_is_seen() -> None:
    assert may_be_of_nan(error_of(lambda: in_vmap(torch.tensor([1, torch.nan]))))
    assert not may_be_of_nan(error_of(lambda: in_vmap(torch.ones(2))))


def error_of(call: Callable[[], Any]) -> BaseException:
    with pytest.raises(ValueError, match="dimensions") as caught:
        call()
    return caught.value


# -- trainings without an optimizer -----------------------------------------------------------


def by_hand(model: Any, x: Any, one: Any) -> None:
    model.zero_grad()
    (model(x) / one).square().mean().backward()
    for each in model.parameters():
        each.data.add_(each.grad, alpha=-0.01)


def update_by_hand(model: Any, x: Any, one: Any) -> None:
    model.zero_grad()
    model(x).square().mean().backward()
    with torch.no_grad():
        for each in model.parameters():
            each -= 0.01 * each.grad / one


def leaves(model: Any, x: Any, one: Any) -> None:
    weight = getattr(model, "leaf", None)
    weight = torch.ones(4, 3, requires_grad=True) if weight is None else weight
    (x @ weight / one).square().mean().backward()
    with torch.no_grad():
        new = weight - 0.01 * weight.grad
    model.leaf = new.requires_grad_()


def leaves_in_place(model: Any, x: Any, one: Any) -> None:
    if not hasattr(model, "leaf"):
        model.leaf = torch.ones(4, 3, requires_grad=True)
    (x @ model.leaf / one).square().mean().backward()
    with torch.no_grad():
        model.leaf -= 0.01 * model.leaf.grad
        model.leaf.grad.zero_()


def gradient(model: Any, x: Any, one: Any) -> None:
    weight = getattr(model, "leaf", None)
    weight = torch.ones(4, 3, requires_grad=True) if weight is None else weight
    [found] = torch.autograd.grad((x @ weight / one).square().mean(), [weight])
    model.leaf = (weight - 0.01 * found).detach().requires_grad_()


def marked(model: Any, x: Any, one: Any) -> None:
    with nncdbg.torch.step(), torch.no_grad():
        (model(x) / one).square().mean()


WITHOUT_OPTIMIZER = (by_hand, update_by_hand, leaves, leaves_in_place, gradient, marked)


def watched_without_optimizer(step: Any, tier: str, *, bad: bool) -> TrainingReport:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    named = model if step in (by_hand, update_by_hand, marked) else None
    with nncdbg.torch.watch(named, on_nan="report", tier=tier) as report:
        for number in range(1, BAD + 3):
            one = torch.zeros(()) if bad and number == BAD else torch.ones(())
            step(model, torch.randn(8, 4), one)
    return report


@pytest.mark.parametrize("step", WITHOUT_OPTIMIZER, ids=lambda step: step.__name__)
def test_a_training_without_an_optimizer_is_watched(step: Any) -> None:
    report = watched_without_optimizer(step, "guard", bad=True)
    [bad] = report.bad_steps
    assert bad.step == BAD
    assert bad.origin is not None, bad.notes
    assert (bad.origin.op, bad.origin.cause) == ("aten.div.Tensor", "division by zero")
    first, lines = inspect.getsourcelines(step)[1], len(inspect.getsourcelines(step)[0])
    assert bad.origin.site.source_line is not None
    assert first < bad.origin.site.source_line < first + lines


@pytest.mark.parametrize("step", WITHOUT_OPTIMIZER, ids=lambda step: step.__name__)
def test_a_clean_training_without_an_optimizer_is_ok(step: Any) -> None:
    report = watched_without_optimizer(step, "guard", bad=False)
    assert report.ok
    assert report.status == "ok"
    assert str(report) == f"training: ok, {BAD + 2} steps without an optimizer"


@pytest.mark.parametrize("step", [by_hand, update_by_hand], ids=lambda step: step.__name__)
def test_the_tier_live_watches_a_training_without_an_optimizer(step: Any) -> None:
    report = watched_without_optimizer(step, "live", bad=True)
    [bad] = report.bad_steps
    assert bad.step == BAD
    assert bad.origin is not None, bad.notes
    assert (bad.origin.op, bad.origin.cause) == ("aten.div.Tensor", "division by zero")
    assert watched_without_optimizer(step, "live", bad=False).status == "ok"


@pytest.mark.parametrize("step", [by_hand, update_by_hand], ids=lambda step: step.__name__)
def test_the_tier_live_keeps_the_operators_of_few_steps_without_an_optimizer(step: Any) -> None:
    torch.manual_seed(0)
    model, kept = nn.Linear(4, 3), []
    with nncdbg.torch.watch(model, on_nan="report", tier="live") as report:
        for number in range(1, 302):
            step(model, torch.randn(8, 4), torch.full((), number < 301))
            if number in (1, 20, 100, 300):
                kept.append(sum(type(each) is Event for each in gc.get_objects()))
    assert 0 < max(kept) <= 17 * kept[0]
    [bad] = report.bad_steps
    assert bad.step == 301
    assert bad.origin is not None, bad.notes
    assert bad.origin.op == "aten.div.Tensor"


def test_operators_of_a_marked_step_are_not_checked_in_the_tier_live() -> None:
    report = watched_without_optimizer(marked, "live", bad=False)
    assert report.status == "not checked"
    assert "not checked: results of operators in 5 marked steps" in str(report)


def test_calls_of_an_evaluation_are_forgotten() -> None:
    model = nn.Linear(4, 3)
    with nncdbg.torch.watch():
        for _ in range(300):
            model(torch.randn(8, 4)).sigmoid()
        [guard] = ACTIVE
        assert len(guard.tape.calls) < 100


def test_calls_that_a_loss_needs_are_kept() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nncdbg.torch.watch(model, optimizer, on_nan="report") as report:
        losses = [model(torch.randn(8, 4)).square().mean() for _ in range(100)]
        (torch.stack(losses).sum() / torch.zeros(())).backward()
        optimizer.step()
    [bad] = report.bad_steps
    assert bad.origin is not None
    assert bad.origin.cause == "division by zero"
    assert not bad.notes
