"""Training without an optimizer of PyTorch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import nncdbg.torch
from tests.torch.faults.cases import fault


@fault(step=2, op="pow", value="inf", cause="overflow")
def new_weight_of_each_step() -> None:
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    weight = torch.randn(3, 1, requires_grad=True)
    for _ in range(3):
        loss = ((x @ weight - y) ** 2).mean()  # FAULT
        loss.backward()
        weight = (weight - 1e25 * weight.grad).detach().requires_grad_()


@fault(step=2, op="log", value="nan", cause="log of a negative number")
def gradient_by_function() -> None:
    weight = torch.full((4,), 0.1, requires_grad=True)
    for _ in range(3):
        loss = torch.log(weight).sum()  # FAULT
        (gradient,) = torch.autograd.grad(loss, [weight])
        weight = (weight - 0.5 * gradient).detach().requires_grad_()


@fault(step=3, op="div", value="nan", cause="zero divided by zero")
def language_model_of_examples() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    for step in range(1, 5):
        x = torch.randn(6, 4) if step != 3 else torch.ones(6, 4)
        x = (x - x.mean()) / x.std()  # FAULT
        model.zero_grad()
        F.cross_entropy(model(x), torch.randint(0, 2, (6,))).backward()
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.1)


@fault(step=2, op="mul", value="inf", cause="overflow")
def update_that_overflows() -> None:
    model = nn.Linear(3, 1)
    for step in range(1, 4):
        loss = (model(torch.rand(5, 3) + 1) * (1e30 if step == 2 else 1.0)).mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 1e12 * parameter.grad  # FAULT
        if step == 1:
            with torch.no_grad():
                model.weight.fill_(0.1)
                model.bias.fill_(0.1)


@fault(step=3, op="log", value="inf", cause="log of zero")
def evolution_strategy() -> None:
    model = nn.Linear(4, 3)
    for step in range(1, 5):
        with nncdbg.torch.step(), torch.no_grad():
            noise = torch.randn_like(model.weight) * 0.01
            model.weight.add_(noise)
            x = torch.randn(5, 4) * (1e5 if step == 3 else 1)
            fitness = model(x).softmax(-1)[:, 0].log().mean()  # FAULT
            if fitness.item() < -10:
                model.weight.sub_(noise)


@fault(step=3, op="mul", value="inf", cause="overflow")
def rule_of_oja() -> None:
    weight = torch.rand(4)
    for step in range(1, 5):
        with nncdbg.torch.step():
            x = torch.rand(4) * (1e25 if step == 3 else 1.0)
            y = weight @ x
            decay = y * y  # FAULT
            weight += 0.01 * (y * x - decay * weight)


@fault(step=1, op="div", value="inf", cause="square root at zero in backward")
def penalty_of_gradient() -> None:
    critic = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    nn.init.zeros_(critic[2].weight)
    for _ in range(2):
        x = torch.randn(5, 3, requires_grad=True)
        gradient = torch.autograd.grad(critic(x).sum(), x, create_graph=True)[0]
        norm = gradient.square().sum(1).sqrt()  # FAULT
        loss = (norm - 1).square().mean()
        critic.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in critic.parameters():
                if parameter.grad is not None:
                    parameter.sub_(0.01 * parameter.grad)


@fault(step=2, op="div", value="nan", cause="zero divided by zero")
def optimized_image() -> None:
    features = nn.Conv2d(1, 3, 3)
    image = torch.rand(1, 1, 6, 6, requires_grad=True)
    for step in range(1, 4):
        loss = features(image).square().mean() * (0.0 if step == 2 else 1.0)
        loss.backward()
        direction = image.grad / image.grad.norm()  # FAULT
        image = (image - 0.1 * direction).detach().requires_grad_()


@fault(step=1, op="div", value="nan", cause="zero divided by zero")
def own_adam_without_epsilon() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    nn.init.constant_(model[0].bias, -100.0)
    first = [torch.zeros_like(each) for each in model.parameters()]
    second = [torch.zeros_like(each) for each in model.parameters()]
    for _ in range(2):
        model.zero_grad()
        (model(torch.randn(8, 3)) - 1).square().mean().backward()
        for parameter, m, v in zip(model.parameters(), first, second, strict=True):
            m.mul_(0.9).add_(parameter.grad, alpha=0.1)
            v.mul_(0.99).addcmul_(parameter.grad, parameter.grad, value=0.01)
            parameter.data.sub_(1e-3 * (m / v.sqrt()))  # FAULT
