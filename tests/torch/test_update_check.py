"""NaN and Inf of an optimizer are named with its formula; with `keep_update`, the update runs again."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402
from torch.optim import SGD, Adam, AdamW, NAdam, Optimizer  # noqa: E402

import nncdbg.torch  # noqa: E402
from nncdbg.torch.updates import FORMULAS, described_update  # noqa: E402
from tests.torch.planted import PLANTED  # noqa: E402

OF_OPTIMIZERS = [
    pytest.param(case, id=case.name)
    for case in PLANTED
    if case.phase == "optimizer" and "closure" not in case.name
]


def watched(training, steps, **options):
    with nncdbg.torch.watch(training.model, training.optimizers, on_nan="report", **options) as report:
        for _ in range(steps):
            training.step()
    return report


@pytest.mark.parametrize("case", OF_OPTIMIZERS)
def test_update_runs_again_and_names_the_operator(case):
    report = watched(case.build(), case.first_bad_step + 1, keep_update=True)
    bad = report.bad_steps[0]
    assert (bad.step, bad.where) == (case.first_bad_step + 1, "update")
    assert case.parameter in " ".join(bad.bad)
    assert bad.origin is not None, bad.notes
    assert (bad.origin.op, bad.origin.site.source_line) == (case.op, case.line)


@pytest.mark.parametrize("case", OF_OPTIMIZERS)
def test_second_run_of_an_update_leaves_no_trace(case):
    plain, training = case.build(), case.build()
    for _ in range(case.first_bad_step + 2):
        plain.step()
    watched(training, case.first_bad_step + 2, keep_update=True)
    for one, other in zip(plain.optimizers, training.optimizers, strict=True):
        before, after = one.state_dict(), other.state_dict()
        assert before["param_groups"] == after["param_groups"]
        torch.testing.assert_close(after["state"], before["state"], rtol=0, atol=0, equal_nan=True)
    for before, after in zip(plain.model.parameters(), training.model.parameters(), strict=True):
        torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)


def dead_model():
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3, eps=0)


def train(model, optimizer, batches, **options):
    with nncdbg.torch.watch(model, optimizer, **options) as report:
        for x in batches:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    return report


def test_report_names_formula_options_and_numbers_of_an_element():
    model, optimizer = dead_model()
    report = train(model, optimizer, [torch.tensor([[0.0, 1.0]])], on_nan="report")
    text = str(report)
    assert "Adam (lr 0.001) made NaN or Inf from finite gradients: weight (1 NaN of 2)" in text
    assert "Adam computes p - lr * m / (sqrt(v) + eps)" in text
    assert "lr 0.001, eps 0" in text
    assert "weight[0, 0] is nan after the update: gradient 0, exp_avg 0, exp_avg_sq 0" in text
    assert "--keep-update" in text


def test_skip_undoes_an_update_that_was_kept():
    model, optimizer = dead_model()
    before = [each.detach().clone() for each in model.parameters()]
    batches = [torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 1.0]])]
    report = train(model, optimizer, batches[:1], on_nan="skip", keep_update=True)
    assert report.skipped == 1
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not optimizer.state
    assert train(model, optimizer, batches[1:], keep_update=True).ok


class Descent(Optimizer):
    """Evaluates its closure a number of times before each update."""

    def __init__(self, parameters, evaluations):
        super().__init__(parameters, {"lr": 1e38})
        self.evaluations = evaluations

    def step(self, closure=None):
        for _ in range(self.evaluations):
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.sub_(parameter.grad * group["lr"])
        return loss


@pytest.mark.parametrize("evaluations", [1, 2])
def test_update_runs_again_if_it_evaluates_its_closure_once(evaluations):
    model = nn.Linear(2, 1)
    optimizer = Descent(model.parameters(), evaluations)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.full((1, 2), 1e3)).sum()
        loss.backward()
        return loss

    with nncdbg.torch.watch(model, optimizer, on_nan="report", keep_update=True) as report:
        optimizer.step(closure)
    bad = report.bad_steps[0]
    assert bad.where == "update"
    # A second run evaluates no closure: it takes the result of the only evaluation.
    assert (bad.recorded is not None) == (evaluations == 1)
    assert any("several times" in note for note in bad.notes) == (evaluations > 1)


def test_formulas_are_of_optimizers_that_exist():
    assert all(issubclass(getattr(torch.optim, name), torch.optim.Optimizer) for name in FORMULAS)


UPDATES = """
Adam f32 | lr=0.1, eps=0 | 0 | zero divided by zero: 0 / (sqrt(v) + eps), and the divisor is 0; use
AdamW f32 | lr=0.1, eps=0, amsgrad=True | 0 | zero divided by zero: 0 / (sqrt(v) + eps), and the divisor is 0
RMSprop f32 | lr=0.1, eps=0 | 0 | zero divided by zero: 0 / (sqrt(v) + eps), and the divisor is 0
Adagrad f32 | lr=0.1, eps=0 | 0 | zero divided by zero: 0 / (sqrt(v) + eps), and the divisor is 0
Adadelta f32 | lr=0.1, eps=0 | 0 | zero divided by zero: 0 / sqrt(v + eps), and the divisor is 0
Adam f16 | lr=0.1, foreach=False | 1e-4 | division by zero: 1.001e-05 / (sqrt(v) + eps), and
Adam f32 | lr=0.1 | 1e25 | the square of the gradient overflows: 1e+25 ** 2 is larger than
SGD f16 | lr=10 | 1e4 | the step overflows: lr * 1e+04 is larger than the largest f16, 6.55e+04; reduce lr
SGD f16 | lr=1, momentum=0.9 | 1 |
"""


@pytest.mark.filterwarnings("ignore:lr_scheduler")
@pytest.mark.parametrize("row", UPDATES.strip().splitlines())
def test_cause_of_a_bad_update_from_the_numbers_after_it(row):
    what, options, gradient, cause = (each.strip() for each in row.split("|"))
    name, dtype = what.split()
    parameter = nn.Parameter(torch.ones(2, dtype={"f16": torch.float16, "f32": torch.float32}[dtype]))
    holder = nn.ParameterList([parameter])
    optimizer = getattr(torch.optim, name)([parameter], **eval(f"dict({options})"))  # noqa: S307
    with nncdbg.torch.watch(holder, optimizer, on_nan="report") as report:
        parameter.grad = torch.full_like(parameter, float(gradient))
        optimizer.step()
    notes = [note for bad in report.bad_steps for note in bad.notes if note.startswith("cause")]
    assert [note[: len(cause) + 7] for note in notes] == ([f"cause: {cause}"] if cause else [])
    if cause and "square" not in cause:
        assert not torch.isfinite(parameter).any()


class OwnAdam(Adam):
    def step(self, closure=None):
        super().step(closure)


OPTIMIZERS = {
    "sgd": lambda each: SGD(each, lr=0.1),
    "momentum": lambda each: SGD(each, lr=0.1, momentum=0.9),
    "adam": lambda each: Adam(each, lr=0.1),
    "adamw, amsgrad": lambda each: AdamW(each, lr=0.1, amsgrad=True),
    "decay in the gradient": lambda each: SGD(each, lr=0.1, weight_decay=0.1),
    "not shown: decay in the momentum": lambda each: SGD(each, lr=0.1, momentum=0.9, weight_decay=0.1),
    "not shown: another formula": lambda each: NAdam(each),
    "not shown: a class of the user": lambda each: OwnAdam(each),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_nan_that_other_code_wrote_before_the_update_is_not_blamed_on_it(name):
    parameter = nn.Parameter(torch.ones(3))
    optimizer = OPTIMIZERS[name]([parameter])
    with nncdbg.torch.watch(nn.ParameterList([parameter]), optimizer, on_nan="report") as report:
        for number in (1.0, float("nan")):
            parameter.grad = torch.full_like(parameter, -0.5)
            parameter.detach().numpy()[1] = number
            optimizer.step()
    [bad] = report.bad_steps
    causes = [note.partition(";")[0] for note in bad.notes if note.startswith("cause")]
    expected = "cause: not this update: its step is finite at 0[1], so the element was NaN or Inf before"
    assert causes == ([] if name.startswith("not shown") else [expected])
    said = "made NaN or Inf" if name.startswith("not shown") else "NaN or Inf after the update of"
    assert said in str(bad)


def test_update_of_a_parameter_that_has_left_its_group_is_described_without_options():
    left, other = nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.ones(1))
    optimizer = Adam([left, other])
    for each in (left, other):
        each.grad = torch.ones_like(each)
    optimizer.step()
    optimizer.param_groups[0]["params"] = [other]
    left.data[0] = float("nan")
    described = described_update(optimizer, "left", left, left)
    assert described[1:] == ["left[0] is nan after the update: gradient 1, exp_avg 0.1, exp_avg_sq 0.001"]
