"""Hints are claims: code in a hint repairs the step, and no hint contradicts what is known about the step."""

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402
from nncdbg.engine.ops.causes import training  # noqa: E402

F = torch.nn.functional
ONE = torch.ones(())
ONES = torch.ones(3, 2)
HALF = torch.float16


def half(function):
    return lambda x: function(x.to(HALF)).float()


REPAIRS = {
    "log": ([0.0, 1.0], torch.log, "torch.log(x.clamp_min(1e-7))", lambda x: torch.log(x.clamp_min(1e-7))),
    "negative log": ([-1.0, 1.0], torch.log, "x.clamp_min(1e-7)", lambda x: torch.log(x.clamp_min(1e-7))),
    "log in f16": ([0.0, 1.0], half(torch.log), "x.clamp_min(1e-4)", half(lambda x: x.clamp_min(1e-4).log())),
    "log1p": ([-1.0, 1.0], torch.log1p, "x.clamp_min(-1 + 1e-6)", lambda x: x.clamp_min(-1 + 1e-6).log1p()),
    "xlogy": (
        [-1.0, 1.0],
        lambda x: torch.xlogy(ONE, x),
        "pass probabilities",
        lambda x: torch.xlogy(ONE, x.sigmoid()),
    ),
    "root": ([-1.0, 0.0, 1.0], torch.sqrt, "x.clamp_min(1e-7) before", lambda x: x.clamp_min(1e-7).sqrt()),
    "root under a mask": (
        [-1.0, 0.0, 1.0],
        lambda x: torch.where(x > 0, x.sqrt(), 0 * x),
        "x.clamp_min(1e-7) before",
        lambda x: torch.where(x > 0, x.clamp_min(1e-7).sqrt(), 0 * x),
    ),
    "power": ([-1.0, 1.0], lambda x: x**-0.5, "x.clamp_min(1e-7)", lambda x: x.clamp_min(1e-7) ** -0.5),
    "exponential": ([200.0, 1.0], torch.exp, "x.clamp_max(80)", lambda x: x.clamp_max(80).exp()),
    "exponential in f16": (
        [200.0, 1.0],
        half(torch.exp),
        "x.clamp_max(10)",
        half(lambda x: x.clamp_max(10).exp()),
    ),
    "acos": (
        [2.0, 0.0],
        torch.acos,
        "x.clamp(-1 + 1e-6, 1 - 1e-6)",
        lambda x: x.clamp(-1 + 1e-6, 1 - 1e-6).acos(),
    ),
    "acos in f16": (
        [2.0, 0.0],
        half(torch.acos),
        "x.clamp(-1 + 1e-3, 1 - 1e-3)",
        half(lambda x: x.clamp(-1 + 1e-3, 1 - 1e-3).acos()),
    ),
    "atanh": (
        [1.0, 0.0],
        torch.atanh,
        "x.clamp(-1 + 1e-6, 1 - 1e-6)",
        lambda x: x.clamp(-1 + 1e-6, 1 - 1e-6).atanh(),
    ),
    "acosh": ([0.0, 2.0], torch.acosh, "x.clamp_min(1 + 1e-6)", lambda x: x.clamp_min(1 + 1e-6).acosh()),
    "logit": ([0.0, 0.5], torch.logit, "torch.logit(p, eps=1e-6)", lambda x: torch.logit(x, eps=1e-6)),
    "lgamma": ([0.0, 0.5], torch.lgamma, "F.softplus(x) + 1e-6", lambda x: (F.softplus(x) + 1e-6).lgamma()),
    "inverse": (
        [[1.0, 2.0], [2.0, 4.0]],
        lambda x: torch.linalg.inv_ex(x)[0],
        "A + 1e-6 * torch.eye(n)",
        lambda x: torch.linalg.inv(x + 1e-6 * torch.eye(2)),
    ),
    "logdet": (
        [[1.0, 2.0], [2.0, 4.0]],
        torch.logdet,
        "A + 1e-6 * torch.eye(n)",
        lambda x: torch.logdet(x + 1e-6 * torch.eye(2)),
    ),
    "negative determinant": (
        [[0.0, 1.0], [2.0, 0.0]],
        torch.logdet,
        "torch.linalg.slogdet(A).logabsdet",
        lambda x: torch.linalg.slogdet(x).logabsdet,
    ),
    "derivative of a root": (
        [0.0, 1.0],
        torch.sqrt,
        "(x + eps).sqrt()",
        lambda x: (x + 1e-6).sqrt(),
    ),
    "derivative of a norm": (
        [0.0, 0.0],
        lambda x: x.norm(dim=0).sqrt(),
        "(x + eps).sqrt()",
        lambda x: (x.norm(dim=0) + 1e-6).sqrt(),
    ),
    "derivative of a power": (
        [0.0, 1.0],
        lambda x: x**0.5,
        "x.clamp_min(eps)",
        lambda x: x.clamp_min(1e-6) ** 0.5,
    ),
    "trap": (
        [0.0, 1.0],
        lambda x: torch.where(x > 0, x.sqrt(), 0.0),
        "torch.where(mask, x, safe)",
        lambda x: torch.where(x > 0, torch.where(x > 0, x, 1.0).sqrt(), 0.0),
    ),
    "masked row": (
        [[1.0, 2.0], [3.0, 4.0]],
        lambda x: F.softmax(x.masked_fill(x < 3, -torch.inf), -1),
        "masked_fill(mask, -1e4)",
        lambda x: F.softmax(x.masked_fill(x < 3, -1e4), -1),
    ),
}
"""A step that is broken at these values, a part of its hint, and the step as the hint says."""


def gradient_is_finite(values, function):
    x = torch.tensor(values, requires_grad=True)
    function(x).sum().backward()
    return bool(x.grad.isfinite().all())


@pytest.mark.parametrize("name", REPAIRS)
def test_a_step_changed_as_its_hint_says_is_finite(name):
    values, broken, expression, repaired = REPAIRS[name]
    model = torch.nn.Module()
    model.p = torch.nn.Parameter(torch.tensor(values))
    with nncdbg.torch.record(model, torch.optim.SGD([model.p], 0.1)) as step:
        broken(model.p).sum().backward()
    first = next(each for each in nncdbg.watch(step, strict=True).findings if each.first)
    assert expression in first.hint
    assert gradient_is_finite(values, repaired)


def test_each_hint_with_numbers_has_a_repair():
    tables = (training._BY_NODE, training._BY_RULE, training._BY_CAUSE)
    code = {
        each for table in tables for text in table.values() for each in re.findall(r"\S*\{\w+\}\S*", text)
    }
    repaired = " ".join(expression for _, _, expression, _ in REPAIRS.values())
    numbers = training._SMALLEST
    assert [each for each in code if each.format_map(numbers).rstrip(",;)") not in repaired] == []


def watched(train, **options):
    """Watch a training of a linear model; return its bad steps."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.pop("lr", 0.01))
    found: list[Any] = []
    with nncdbg.torch.watch(model, optimizer, on_nan="report", found=found.append, **options):
        train(model, optimizer)
    return found


def update(model, optimizer, x=ONES):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def test_a_parameter_that_is_bad_at_the_first_step_has_no_earlier_checkpoint():
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    model.weight.data.fill_(torch.nan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nncdbg.torch.watch(model, optimizer, on_nan="report") as report:
        update(model, optimizer)
    (bad,) = report.bad_steps
    assert bad.origin.cause == "bad parameter"
    assert bad.origin.hint.startswith("it was so before the first step: initialize it")


def test_a_number_written_between_steps_is_the_origin():
    def train(model, optimizer):
        update(model, optimizer)
        model.weight.data.fill_(torch.nan)
        update(model, optimizer)

    (bad,) = watched(train)
    assert (bad.step, bad.origin.op, bad.origin.cause) == (2, "aten.fill_.Scalar", "bad parameter")


def test_memory_written_between_steps_was_finite_after_the_update():
    def train(model, optimizer):
        update(model, optimizer)
        model.weight.detach().numpy()[:] = float("nan")
        update(model, optimizer)

    (bad,) = watched(train)
    assert (bad.step, bad.origin.cause) == (2, "bad parameter")
    assert bad.origin.hint.startswith("no update made it: look for code between the steps")


@pytest.mark.parametrize("steps", [1, 2])
def test_a_learning_rate_is_blamed_only_after_an_update(steps):
    def train(model, optimizer):
        for _ in range(steps - 1):
            update(model, optimizer)
        update(model, optimizer, ONES * 1e30)

    (bad,) = watched(train)
    assert bad.origin.cause == "overflow"
    assert ("learning rate" in bad.origin.hint) == (steps > 1)


def test_the_update_that_moved_a_parameter_far_is_named():
    def train(model, optimizer):
        update(model, optimizer)
        optimizer.param_groups[0]["lr"] = 1e30
        for _ in range(2):
            update(model, optimizer)

    (bad,) = watched(train)
    assert bad.step == 3
    (note,) = bad.notes
    assert re.fullmatch(
        r"the update of step 2 moved the .* of (weight|bias) from 0\.\d+ to .*e\+\d+: SGD \(lr 1e\+30\)", note
    )
    assert bad.origin.hint.startswith("lower the learning rate")


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}])
@pytest.mark.parametrize(
    ("kind", "rate"),
    [("SGD", torch.nan), *((kind, torch.inf) for kind in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad"))],
)
def test_a_learning_rate_that_is_no_number_is_the_cause(kind, options, rate):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    try:
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, **options)
    except (TypeError, RuntimeError):
        pytest.skip(f"{kind} has no such implementation")
    optimizer.param_groups[0]["lr"] = rate
    found: list[Any] = []
    with nncdbg.torch.watch(model, optimizer, on_nan="report", keep_update=True, found=found.append):
        update(model, optimizer)
    bad = found[0]
    assert bad.origin.cause in ("learning rate too large", "overflow in the optimizer")
    assert "learning rate" in bad.origin.hint or "last_lr" in bad.origin.hint
    assert any(note.startswith(f"cause: the learning rate is {rate}") for note in bad.notes)
    assert not any("no NaN or Inf" in note for note in bad.notes)


def test_a_division_is_blamed_only_with_a_divisor_of_zero():
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, foreach=True, eps=0.0)
    found: list[Any] = []
    with nncdbg.torch.watch(model, optimizer, on_nan="report", keep_update=True, found=found.append):
        update(model, optimizer, torch.zeros(3, 2))
    assert found[0].origin.cause == "division in the optimizer"
    assert "the divisor %foreach_sqrt" in found[0].origin.evidence
