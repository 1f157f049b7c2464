"""Autograd functions and custom operators of Python code run as without nncdbg, and are seen."""

import shutil
from contextlib import nullcontext
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import nncdbg.torch  # noqa: E402

compiles = any(map(shutil.which, ("c++", "g++", "clang++")))


@torch.library.custom_op("nncdbg_functions::scale", mutates_args=())
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:  # type: ignore[name-defined]
    return torch.log(x * 0 - 1) if factor < 0 else x * factor


@torch.library.custom_op("nncdbg_functions::halve", mutates_args=())
def halve(x: torch.Tensor, factor: float) -> torch.Tensor:  # type: ignore[name-defined]
    return x / 2


halve.register_autograd(
    lambda context, gradient: (scale(gradient, context.factor), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)


class Square(torch.autograd.Function):  # type: ignore[name-defined]
    @staticmethod
    def forward(context, x, factor=1.0):
        context.save_for_backward(x)
        return x * x * factor

    @staticmethod
    def backward(context, gradient):
        (x,) = context.saved_tensors
        return 2 * x * gradient, None


class Overriding(Square):
    @classmethod
    def apply(cls, x):
        return super().apply(x, 2.0)


class Mapped(torch.autograd.Function):  # type: ignore[name-defined]
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(context, inputs, output):
        context.save_for_backward(*inputs)

    @staticmethod
    def backward(context, gradient):
        (x,) = context.saved_tensors
        return x.cos() * gradient


FORMS = {
    "function": Square.apply,
    "overridden apply": Overriding.apply,
    "vmap": torch.vmap(Mapped.apply),
    "setup_context": Mapped.apply,
    "torch.func.grad": lambda x: torch.func.grad(lambda y: Mapped.apply(y).sum())(x),
    "custom operator": lambda x: halve(x, 0.5),
    "custom operator by its overload": lambda x: torch.ops.nncdbg_functions.halve.default(x, 0.5),
}
TIERS = [
    "guard",
    "hooks",
    pytest.param("native", marks=pytest.mark.skipif(not compiles, reason="no compiler")),
]


def trained(form, watching=nullcontext):
    """Return the losses of three steps and the weights after them."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with watching(model, optimizer) as report:
        for _ in range(3):
            optimizer.zero_grad()
            loss = form(model(torch.randn(4, 3))).sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, [parameter.tolist() for parameter in model.parameters()], report


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_watched_training_computes_the_same(form, tier):
    *expected, _ = trained(form, lambda *_: nullcontext())
    *watched, report = trained(form, partial(nncdbg.torch.watch, tier=tier))
    assert watched == expected
    assert (report.counts.steps, report.bad_steps) == (3, [])


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_recorded_step_computes_the_same(form):
    def loss_and_gradient():
        x = torch.linspace(0.5, 1, 6).reshape(2, 3).requires_grad_()
        loss = form(x).sum()
        if loss.requires_grad:
            loss.backward()
        return loss.tolist(), None if x.grad is None else x.grad.tolist()

    expected = loss_and_gradient()
    with nncdbg.torch.record() as step:
        assert loss_and_gradient() == expected
    debugger = nncdbg.Debugger(step)
    assert debugger.run().reason == "end"


@pytest.mark.parametrize("tier", TIERS)
def test_a_custom_operator_of_the_backward_pass_is_named(tier):
    _, _, report = trained(lambda x: halve(x, -1.0), partial(nncdbg.torch.watch, tier=tier, on_nan="report"))
    assert report.bad_steps[0].step == 1
    assert "nncdbg_functions.scale" in str(report)
