"""Hooks, custom functions, checkpoints, higher derivatives and function transforms."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, jacrev, vmap
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.torch.steps.attention import Block
from tests.torch.steps.training import Training, step, steps_of, trained


class ClampWithSlope(torch.autograd.Function):
    """Clamps to [-1, 1]; outside, a tenth of the gradient passes."""

    @staticmethod
    def forward(ctx: Any, x: Any, slope: float) -> Any:
        ctx.save_for_backward(x)
        ctx.slope = slope
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradients[0] * torch.where(x.abs() <= 1, 1.0, ctx.slope), None


class ScaledSum(torch.autograd.Function):
    """Two outputs, one without a gradient, and an input that is written in place."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        x.mul_(2)
        ctx.mark_dirty(x)
        ctx.save_for_backward(y)
        order = y.argsort(dim=1)
        ctx.mark_non_differentiable(order)
        return x, order

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (y,) = ctx.saved_tensors
        return 2 * gradients[0], gradients[0] * y.sign()


@step()
def custom_functions() -> Training:
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(4, 5))
    x = torch.randn(6, 4)

    def loss_of() -> torch.Tensor:
        h = ClampWithSlope.apply(2 * model[0](x), 0.1)
        scaled, order = ScaledSum.apply(h + 1, model[1](x))
        return scaled.gather(1, order)[:, :2].square().mean()

    return trained(model, torch.optim.Adam(model.parameters()), loss_of)


@step()
def hooks_that_change_values() -> Training:
    """Hooks before and after forward and backward of modules, of a tensor and of parameters."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    model[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] * 0.5,))
    model[1].register_forward_hook(lambda module, inputs, output: output + 0.1)
    model[1].register_full_backward_hook(lambda module, inputs, outputs: None)
    model[2].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0].clamp(-0.01, 0.01),))
    model[2].register_full_backward_pre_hook(lambda module, outputs: (outputs[0] * 3,))
    model[0].weight.register_hook(lambda gradient: gradient - gradient.mean(dim=1, keepdim=True))
    counts = {"accumulated": torch.zeros(())}

    def count(parameter: torch.Tensor) -> None:
        counts["accumulated"].add_(1)

    model[2].bias.register_post_accumulate_grad_hook(count)
    x = torch.randn(5, 4)

    def loss_of() -> torch.Tensor:
        h = model(x)
        h.register_hook(lambda gradient: gradient * torch.tensor([1.0, 0.5]))
        return h.exp().mean()

    return trained(model, torch.optim.SGD(model.parameters(), 0.1), loss_of, counts)


@step()
def optimizer_in_backward_hooks() -> Training:
    """Each parameter is updated as soon as its gradient is complete, and the gradient is freed."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    optimizers = {parameter: torch.optim.Adam([parameter], foreach=False) for parameter in model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        optimizer = optimizers[parameter]
        optimizer.step()
        optimizer.zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    x = torch.randn(5, 4)

    def run() -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return Training([model], list(optimizers.values()), run)


def checkpointed(use_reentrant: bool, dropout: float) -> Training:
    """Return a step of two decoder blocks that are computed again in backward."""
    model = nn.ModuleList(Block(8, 2, dropout) for _ in range(2))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(2, 5, 8)

    def run() -> torch.Tensor:
        h = x.clone().requires_grad_()
        for block in model:
            h = checkpoint(block, h, use_reentrant=use_reentrant)
        loss = h.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return Training([model], [optimizer], run)


@step()
def checkpoint_reentrant() -> Training:
    return checkpointed(use_reentrant=True, dropout=0.0)


@step()
def checkpoint_not_reentrant() -> Training:
    return checkpointed(use_reentrant=False, dropout=0.0)


@step()
def checkpoint_reentrant_with_dropout() -> Training:
    return checkpointed(use_reentrant=True, dropout=0.3)


@step()
def checkpoint_not_reentrant_with_dropout() -> Training:
    return checkpointed(use_reentrant=False, dropout=0.3)


@step()
def checkpoint_of_sequential_segments() -> Training:
    layers = [nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.2), nn.SiLU()) for _ in range(4)]
    model = nn.Sequential(*layers)
    x = torch.randn(4, 6, requires_grad=True)
    return trained(
        model,
        torch.optim.Adam(model.parameters()),
        lambda: checkpoint_sequential(model, 2, x, use_reentrant=False).square().mean(),
        {"x": x},
    )


def per_sample_loss(model: nn.Module) -> Any:
    """Return a function of (parameters, row, target) that returns the loss of one sample."""

    def loss_of(parameters: Any, row: Any, target: Any) -> Any:
        return F.cross_entropy(functional_call(model, parameters, (row[None],)), target[None])

    return loss_of


@step()
def per_sample_gradients_clipped() -> Training:
    """Differential privacy: gradients by vmap(grad), clipped per sample, plus noise."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, target = torch.randn(5, 4), torch.randint(0, 3, (5,))
    gradients_of = vmap(grad(per_sample_loss(model)), in_dims=(None, 0, 0))

    def run() -> torch.Tensor:
        parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
        gradients = gradients_of(parameters, x, target)
        norms = torch.stack([part.flatten(1).norm(dim=1) for part in gradients.values()]).norm(dim=0)
        factor = (0.5 / norms).clamp(max=1.0)
        for name, parameter in model.named_parameters():
            clipped = torch.einsum("n,n...->...", factor, gradients[name])
            parameter.grad = (clipped + 0.01 * torch.randn_like(clipped)) / len(x)
        optimizer.step()
        return F.cross_entropy(model(x), target)

    return Training([model], [optimizer], run)


@step()
def functional_training_step() -> Training:
    """Parameters are a dictionary that each step replaces; there is no optimizer."""
    model = nn.Linear(4, 3)
    x, target = torch.randn(5, 4), torch.randn(5, 3)
    kept = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def loss_of(parameters: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        prediction = functional_call(model, parameters, (x,))
        return F.mse_loss(prediction, target), prediction

    def run() -> torch.Tensor:
        gradients, (loss, _) = torch.func.grad_and_value(loss_of, has_aux=True)(kept)
        kept.update({name: value - 0.1 * gradients[name] for name, value in kept.items()})
        return loss

    return Training([model], [], run, kept)


@step()
def model_ensemble_by_vmap() -> Training:
    """Five models with stacked parameters, trained in one pass."""
    stacked = nn.ParameterDict(
        {"weight": nn.Parameter(torch.randn(5, 3, 4)), "bias": nn.Parameter(torch.zeros(5, 3))}
    )
    x, target = torch.randn(6, 4), torch.randn(6, 3)

    def loss_of() -> torch.Tensor:
        outputs = vmap(F.linear, in_dims=(None, 0, 0))(x, stacked["weight"], stacked["bias"])
        return vmap(F.mse_loss, in_dims=(0, None))(torch.tanh(outputs), target).sum()

    return trained(stacked, torch.optim.Adam(stacked.parameters()), loss_of)


@step()
def double_backward_input_gradient_penalty() -> Training:
    model = nn.Sequential(nn.Linear(4, 6), nn.Softplus(), nn.Linear(6, 1))
    x = torch.randn(5, 4, requires_grad=True)

    def loss_of() -> torch.Tensor:
        y = model(x)
        (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
        return y.square().mean() + gradient.square().sum(1).mean()

    return trained(model, torch.optim.AdamW(model.parameters()), loss_of, {"x": x})


@step()
def meta_learning_inner_update() -> Training:
    """MAML: the loss after one inner update, differentiated through that update."""
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    tasks = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(2)]

    def loss_of() -> torch.Tensor:
        total = torch.zeros(())
        for x, target in tasks:
            parameters = dict(model.named_parameters())
            inner = F.mse_loss(functional_call(model, parameters, (x[:2],)), target[:2])
            gradients = torch.autograd.grad(inner, list(parameters.values()), create_graph=True)
            fast = {name: p - 0.1 * g for (name, p), g in zip(parameters.items(), gradients, strict=True)}
            total = total + F.mse_loss(functional_call(model, fast, (x[2:],)), target[2:])
        return total

    return trained(model, torch.optim.Adam(model.parameters()), loss_of)


@step()
def physics_informed_second_derivative() -> Training:
    """The residual u'' + u of a network u(x), with derivatives by torch.func and by autograd."""
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    points = torch.linspace(0, 1, 6)[:, None]

    def loss_of() -> torch.Tensor:
        def value(x: torch.Tensor) -> torch.Tensor:
            return model(x)[0]

        x = points.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        jacobian = vmap(jacrev(value))(points)
        return (bend + model(x)).square().mean() + (jacobian.squeeze() - 1).square().mean()

    return trained(model, torch.optim.Adam(model.parameters()), loss_of)


STEPS = steps_of(globals())
