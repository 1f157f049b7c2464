"""Custom operators, functions of autograd, hooks and checkpoints."""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd import Function
from torch.optim import SGD, Adam
from torch.utils.checkpoint import checkpoint

from tests.torch.faults.cases import fault


@fault(step=2, op="div", value="inf", cause="division by zero")
def backward_of_own_function() -> None:
    class Log1(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return torch.log1p(x.abs())

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient / x  # FAULT

    model = nn.Linear(3, 3)
    optimizer = SGD(model.parameters(), lr=0.01)
    for step in range(1, 4):
        z = model(torch.randn(4, 3)) * (torch.ones(3) if step != 2 else torch.tensor([1.0, 0.0, 1.0]))
        optimizer.zero_grad()
        Log1.apply(z).mean().backward()
        optimizer.step()


@fault(step=1, op="log", value="inf", cause="log of zero")
def forward_of_own_function() -> None:
    class LogOfRelu(Function):
        @staticmethod
        def forward(ctx, x):
            positive = x.clamp(min=0)
            ctx.save_for_backward(positive)
            return positive.log()  # FAULT

        @staticmethod
        def backward(ctx, gradient):
            (positive,) = ctx.saved_tensors
            return gradient * (positive > 0)

    model = nn.Sequential(nn.Linear(4, 6))
    optimizer = Adam(model.parameters())
    for _ in range(2):
        z = model(torch.randn(5, 4))
        optimizer.zero_grad()
        LogOfRelu.apply(z - 0.1).mean().backward()
        optimizer.step()


@fault(step=1, op="log", value="nan", cause="log of a negative number")
def body_of_custom_operator() -> None:
    @torch.library.custom_op("faults::shifted_log", mutates_args=())
    def shifted_log(x: torch.Tensor) -> torch.Tensor:
        return torch.log(x - 1.0)  # FAULT

    shifted_log.register_fake(lambda x: torch.empty_like(x))
    shifted_log.register_autograd(lambda ctx, gradient: gradient * 0.5)
    weight = nn.Parameter(torch.rand(4))
    optimizer = SGD([weight], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        shifted_log(weight).sum().backward()
        optimizer.step()


@fault(step=2, op="div", value="inf", cause="division by zero")
def backward_of_custom_operator() -> None:
    @torch.library.custom_op("faults::square", mutates_args=())
    def square(x: torch.Tensor) -> torch.Tensor:
        return x * x

    def setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)

    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return 2 * gradient / x * y  # FAULT

    square.register_autograd(backward, setup_context=setup)
    model = nn.Linear(2, 3)
    optimizer = SGD(model.parameters(), lr=0.01)
    for step in range(1, 4):
        z = model(torch.randn(4, 2))
        if step == 2:
            z = z * 0
        optimizer.zero_grad()
        square(z).mean().backward()
        optimizer.step()


@fault(step=2, op="div", value="inf", cause="division by zero")
def straight_through_estimator() -> None:
    class Sample(Function):
        @staticmethod
        def forward(ctx, p):
            ctx.save_for_backward(p)
            return (p > 0.5).float()

        @staticmethod
        def backward(ctx, gradient):
            (p,) = ctx.saved_tensors
            return gradient / (p * (1 - p))  # FAULT

    model = nn.Linear(4, 2)
    optimizer = SGD(model.parameters(), lr=1e-3)
    for step in range(1, 4):
        p = torch.sigmoid(model(torch.randn(3, 4)) + (200 if step == 2 else 0))
        optimizer.zero_grad()
        Sample.apply(p).mean().backward()
        optimizer.step()


@fault(step=1, op="div", value="nan", cause="zero divided by zero")
def hook_of_parameter() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    nn.init.constant_(model[0].bias, -100.0)
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient / gradient.norm())  # FAULT
    optimizer = SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        (model(torch.randn(6, 3)) - 1).square().mean().backward()
        optimizer.step()


@fault(step=2, op="exp", value="inf", cause="overflow of the exponential")
def hook_of_module() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    strength = torch.ones(())

    def reverse(module, inputs, outputs):
        return (-inputs[0] * torch.exp(strength),)  # FAULT

    model[2].register_full_backward_hook(reverse)
    optimizer = Adam(model.parameters(), lr=1e-3)
    for step in range(1, 4):
        if step == 2:
            strength.fill_(100.0)
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().mean().backward()
        optimizer.step()


@fault(step=2, op="acos", value="nan", cause="outside of the domain")
def block_with_checkpoint() -> None:
    class Angle(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x):
            return torch.acos(self.linear(x))  # FAULT

    block, head = Angle(), nn.Linear(2, 1)
    nn.init.constant_(block.linear.weight, 0.01)
    nn.init.zeros_(block.linear.bias)
    optimizer = SGD([*block.parameters(), *head.parameters()], lr=1e-4)
    for step in range(1, 4):
        x = torch.randn(4, 3) * (1e4 if step == 2 else 1)
        loss = head(checkpoint(block, x, use_reentrant=False)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
