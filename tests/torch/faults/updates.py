"""Learning rates and moments: the update makes a NaN or Inf from finite gradients."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, NAdam, Optimizer, RAdam, RMSprop
from torch.optim.lr_scheduler import ExponentialLR

from tests.torch.faults.cases import fault


def dead_network() -> nn.Sequential:
    """Return a network whose first layer has gradients of 0."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    nn.init.constant_(model[0].bias, -100.0)
    return model


@fault(step=1, op="addcdiv", value="nan", cause="division in the optimizer")
def nadam_without_epsilon() -> None:
    model = dead_network()
    optimizer = NAdam(model.parameters(), lr=1e-3, eps=0)
    for _ in range(2):
        optimizer.zero_grad()
        (model(torch.randn(8, 3)) - 1).square().mean().backward()
        optimizer.step()  # FAULT


@fault(step=1, op="add", value="inf", cause="learning rate too large")
def learning_rate_of_1e38() -> None:
    model = nn.Linear(3, 1)
    optimizer = SGD(model.parameters(), lr=1e38, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        (model(torch.full((4, 3), 10.0))).sum().backward()
        optimizer.step()  # FAULT


@fault(step=4, op="add", value="inf", cause="learning rate too large")
def growing_schedule() -> None:
    weight = nn.Parameter(torch.rand(4))
    optimizer = SGD([weight], lr=1e-3)
    scheduler = ExponentialLR(optimizer, gamma=4e13)
    for _ in range(5):
        optimizer.zero_grad()
        (weight * 100).sum().backward()
        optimizer.step()  # FAULT
        scheduler.step()


@fault(step=1, op="addcdiv", value="inf", cause="division in the optimizer")
def centered_rmsprop() -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = RMSprop(model.parameters(), lr=1e-3, alpha=0.0, eps=0.0, centered=True)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()  # FAULT


@fault(step=2, op="mul", value="inf", cause="overflow in the optimizer", also=("learning rate too large",))
def weight_decay_of_1e30() -> None:
    weight = nn.Parameter(torch.rand(4) + 0.5)
    optimizer = AdamW([weight], lr=10.0, weight_decay=1e30)
    for _ in range(3):
        optimizer.zero_grad()
        (weight * 1e-3).sum().backward()
        optimizer.step()  # FAULT


@fault(step=2, op="addcmul", value="inf", cause="overflow in the optimizer")
def square_of_huge_gradient() -> None:
    weight = nn.Parameter(torch.rand(4))
    optimizer = RMSprop([weight], lr=1e-3)
    for step in range(1, 4):
        optimizer.zero_grad()
        (weight * (1e25 if step == 2 else 1.0)).sum().backward()
        optimizer.step()  # FAULT


@fault(step=3, op="mul", value="inf", cause="overflow in the optimizer", also=("learning rate too large",))
def momentum_of_1e20() -> None:
    weight = nn.Parameter(torch.rand(3))
    optimizer = SGD([weight], lr=1e-30, momentum=1e20)
    for _ in range(4):
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()  # FAULT


@fault(step=1, op="add", value="inf", cause="learning rate too large")
def infinite_learning_rate() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    optimizer = SGD(model.parameters(), lr=float("inf"))
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.rand(4, 2)).sum().backward()
        optimizer.step()  # FAULT


@fault(step=1, op="addcdiv", value="nan", cause="division in the optimizer", also=("zero divided by zero",))
def own_optimizer_without_epsilon() -> None:
    class RootMeanSquare(Optimizer):
        def __init__(self, parameters, lr):
            super().__init__(parameters, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    state = self.state[parameter]
                    square = state.setdefault("square", torch.zeros_like(parameter))
                    square.mul_(0.9).addcmul_(parameter.grad, parameter.grad, value=0.1)
                    parameter.addcdiv_(parameter.grad, square.sqrt(), value=-group["lr"])  # FAULT

    model = dead_network()
    optimizer = RootMeanSquare(model.parameters(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        (model(torch.randn(8, 3)) - 1).square().mean().backward()
        optimizer.step()


@fault(step=2, op="addcmul", value="inf", cause="overflow in the optimizer")
def second_moment_of_adam() -> None:
    model = nn.Embedding(5, 2)
    optimizer = Adam(model.parameters(), lr=1e-3)
    for step in range(1, 4):
        optimizer.zero_grad()
        (model(torch.tensor([0, 3])) * (3e24 if step == 2 else 1.0)).sum().backward()
        optimizer.step()  # FAULT


@fault(step=1, op="mul", value="inf", cause="learning rate too large")
def learning_rate_of_radam() -> None:
    model = nn.Linear(2, 1)
    optimizer = RAdam(model.parameters(), lr=1e38)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.full((4, 2), 10.0)).sum().backward()
        optimizer.step()  # FAULT
