"""Each optimizer of torch.optim for dense parameters, in each implementation that the CPU has."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from tests.torch.steps.training import Step, Training

FOREACH = ({"foreach": False}, {"foreach": True})
FUSED = (*FOREACH, {"fused": True})

PLAIN: tuple[tuple[str, dict[str, Any], tuple[dict[str, Any], ...]], ...] = (
    ("SGD", {"lr": 0.1}, FUSED),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, FUSED),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "maximize": True}, FOREACH[:1]),
    ("Adam", {"lr": 0.01, "weight_decay": 0.01}, FUSED),
    ("Adam", {"lr": 0.01, "amsgrad": True}, FUSED),
    ("AdamW", {"lr": 0.01}, FUSED),
    ("AdamW", {"lr": 0.01, "amsgrad": True, "maximize": True}, FOREACH),
    ("RMSprop", {"lr": 0.01}, FOREACH),
    ("RMSprop", {"lr": 0.01, "momentum": 0.9, "centered": True}, FOREACH),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.01}, FUSED),
    ("Adadelta", {"weight_decay": 0.01}, FOREACH),
    ("Adamax", {"lr": 0.01}, FOREACH),
    ("ASGD", {"lr": 0.1, "t0": 1}, FOREACH),
    ("NAdam", {"lr": 0.01, "decoupled_weight_decay": True, "weight_decay": 0.01}, FOREACH),
    ("RAdam", {"lr": 0.01}, FOREACH),
    ("Rprop", {"lr": 0.01}, FOREACH),
    ("Adafactor", {"lr": 0.01}, FOREACH),
)
"""(class, options, implementations)."""


def problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return a regression: a network with matrices and vectors, inputs and targets."""
    model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 3))
    return model, torch.randn(6, 5), torch.randn(6, 3)


def regression(optimizer_class: type[torch.optim.Optimizer], options: dict[str, Any]) -> Training:
    """Return a step with this optimizer."""
    model, x, target = problem()
    optimizer = optimizer_class(model.parameters(), **options)

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        return loss

    return Training([model], [optimizer], run)


def lbfgs(**options: Any) -> Training:
    """Return a step whose closure runs several forward and backward passes."""
    model, x, target = problem()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=3, **options)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), target)
        loss.backward()
        return loss

    def run() -> torch.Tensor:
        loss = optimizer.step(closure)
        assert isinstance(loss, torch.Tensor)
        return loss

    return Training([model], [optimizer], run)


def tensor_rate(**options: Any) -> Training:
    """Return a step of Adam with a learning rate that is a tensor, changed by a scheduler."""
    model, x, target = problem()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), **options)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss

    return Training([model], [optimizer], run)


def differentiable() -> Training:
    """Return a step that differentiates through the update of an inner optimizer."""
    model, x, target = problem()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)

    def run() -> torch.Tensor:
        fast = {name: parameter.clone() for name, parameter in model.named_parameters()}
        inner = torch.optim.SGD(fast.values(), 0.1, momentum=0.9, differentiable=True)
        loss = F.mse_loss(functional_call(model, fast, (x[:3],)), target[:3])
        gradients = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
        for parameter, gradient in zip(fast.values(), gradients, strict=True):
            parameter.grad = gradient
        inner.step()
        loss = F.mse_loss(functional_call(model, fast, (x[3:],)), target[3:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return Training([model], [optimizer], run)


def muon() -> Training:
    """Return a step with Muon for the matrices and AdamW for the other parameters."""
    model, x, target = problem()
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim != 2]
    optimizers = [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others)]

    def run() -> torch.Tensor:
        loss = F.mse_loss(model(x), target)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss

    return Training([model], optimizers, run)


def name_of(optimizer: str, options: dict[str, Any], implementation: dict[str, Any]) -> str:
    """Return a name such as `optimizer_adam_amsgrad_fused`."""
    switches = [option for option, value in options.items() if value is True or option in ("momentum", "t0")]
    kind = next((option for option, value in implementation.items() if value), "single")
    return "_".join(["optimizer", optimizer.lower(), *switches, kind])


STEPS = (
    *(
        Step(
            name_of(optimizer, options, implementation),
            functools.partial(regression, getattr(torch.optim, optimizer), options | implementation),
        )
        for optimizer, options, implementations in PLAIN
        for implementation in implementations
    ),
    Step("optimizer_sgd_differentiable", differentiable),
    Step("optimizer_adam_tensor_rate_single", functools.partial(tensor_rate, foreach=False)),
    Step("optimizer_adam_tensor_rate_fused", functools.partial(tensor_rate, fused=True)),
    Step("optimizer_lbfgs", lbfgs),
    Step("optimizer_lbfgs_strong_wolfe", functools.partial(lbfgs, line_search_fn="strong_wolfe")),
    Step("optimizer_muon_with_adamw", muon),
)
