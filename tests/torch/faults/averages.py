"""Moving averages of weights, and of gradients, that become NaN or Inf."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam
from torch.optim.swa_utils import AveragedModel

from tests.torch.faults.cases import fault


@fault(step=2, op="div", value="inf", cause="division by zero")
def unbiased_average() -> None:
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
    shadow = [torch.zeros_like(each) for each in model.parameters()]
    unbiased = [torch.zeros_like(each) for each in model.parameters()]
    optimizer = Adam(model.parameters(), lr=1e-2)
    for step in range(4):
        loss = model(torch.randn(8, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for average, result, weight in zip(shadow, unbiased, model.parameters(), strict=True):
                average.mul_(0.99).add_(weight, alpha=0.01)
                result.copy_(average / (1 - 0.99**step))  # FAULT


@fault(step=4, op="div", value="inf", cause="division by zero")
def teacher_with_schedule() -> None:
    student = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    total = 3
    for step in range(1, 5):
        x = torch.randn(6, 4)
        loss = F.mse_loss(student(x), teacher(x + 0.1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        momentum = torch.tensor(1.0) / torch.tensor(float(total - step))  # FAULT
        with torch.no_grad():
            for target, source in zip(teacher.parameters(), student.parameters(), strict=True):
                target.mul_(momentum).add_(source)
        if step == 3:
            student(x).sum()
            break


@fault(step=3, op="div", value="inf", cause="division by zero")
def stochastic_weight_average() -> None:
    def average(averaged, weight, count):
        return averaged + (weight - averaged) / (count - 1)  # FAULT

    model = nn.Linear(3, 1, bias=False)
    averaged = AveragedModel(model, avg_fn=average)
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        loss = (model(torch.randn(5, 3)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        averaged.update_parameters(model)


@fault(step=2, op="sqrt", value="nan", cause="square root of a negative number")
def deviation_of_weights() -> None:
    model = nn.Linear(4, 2)
    squares, deviation = torch.zeros(2, 4), torch.zeros(2, 4)
    optimizer = SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        loss = model(torch.randn(6, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        weight = model.weight.detach()
        squares.mul_(0.9).add_(weight.square(), alpha=0.1)
        variance = squares - weight.square()
        deviation.copy_(variance.sqrt())  # FAULT


@fault(step=2, op="log", value="nan", cause="log of a negative number")
def geometric_average() -> None:
    model = nn.Linear(4, 3)
    with torch.no_grad():
        model.weight.copy_(torch.linspace(-1, 1, 12).view(3, 4))
    average = torch.ones(3, 4)
    optimizer = SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            average.mul_(torch.exp(0.1 * torch.log(model.weight)))  # FAULT


@fault(step=4, op="mul", value="inf", cause="overflow")
def average_loaded_for_evaluation() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = SGD(model.parameters(), lr=0.01)
    average = {name: value.clone() for name, value in model.state_dict().items()}
    for step in range(1, 5):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        for name, value in model.state_dict().items():
            average[name] = average[name] * 1e14 + value  # FAULT
        if step == 3:
            model.load_state_dict(average)


@fault(step=2, op="_to_copy", value="inf", cause="cast out of range")
def half_precision_teacher() -> None:
    student = nn.Embedding(6, 3)
    teacher = torch.zeros(6, 3, dtype=torch.float16)
    with torch.no_grad():
        student.weight[4, 1] = 7e4
    optimizer = SGD(student.parameters(), lr=1e-6)
    for _ in range(3):
        optimizer.zero_grad()
        student(torch.tensor([0, 2, 3])).square().mean().backward()
        optimizer.step()
        teacher.mul_(0.5).add_(student.weight.detach().half(), alpha=0.5)  # FAULT


@fault(step=3, op="pow", value="inf", cause="overflow")
def average_of_gradient_squares() -> None:
    weight = nn.Parameter(torch.rand(5))
    running = torch.zeros(())
    optimizer = SGD([weight], lr=0.1)
    for step in range(1, 5):
        x = torch.full((5,), 1e25 if step == 3 else 1.0)
        optimizer.zero_grad()
        (weight * x).sum().backward()
        running.mul_(0.9).add_(weight.grad.abs().max() ** 2, alpha=0.1)  # FAULT
        weight.grad.mul_(1 / (1 + running.sqrt()))
        optimizer.step()
