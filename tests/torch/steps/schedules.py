"""Gradient clipping and accumulation, schedules, parameter groups and averages of weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.torch.steps.classic import Perceptron
from tests.torch.steps.training import Training, step, steps_of


@step()
def clip_grad_norm() -> Training:
    model = Perceptron(6, 8, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, target = torch.randn(5, 6), torch.randint(0, 3, (5,))
    kept = {"norm": torch.zeros(())}

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        loss = 10 * F.cross_entropy(model(x), target)
        loss.backward()
        kept["norm"] = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss

    return Training([model], [optimizer], run, kept)


@step()
def clip_grad_norm_without_foreach() -> Training:
    model = Perceptron(6, 8, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
    x, target = torch.randn(5, 6), torch.randint(0, 3, (5,))

    def run() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm_type=float("inf"), foreach=False)
        optimizer.step()
        return loss

    return Training([model], [optimizer], run)


@step()
def clip_grad_value() -> Training:
    model = Perceptron(6, 8, 3)
    optimizer = torch.optim.Adam(model.parameters())
    x, target = torch.randn(5, 6), torch.randn(5, 3)

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), target)
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.05)
        optimizer.step()
        return loss

    return Training([model], [optimizer], run)


@step()
def gradient_accumulation() -> Training:
    model = Perceptron(6, 8, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    x, target = torch.randn(6, 6), torch.randint(0, 3, (6,))

    def run() -> torch.Tensor:
        total = torch.zeros(())
        optimizer.zero_grad()
        for rows, labels in zip(x.chunk(3), target.chunk(3), strict=True):
            loss = F.cross_entropy(model(rows), labels) / 3
            loss.backward()
            total += loss.detach()
        optimizer.step()
        return total

    return Training([model], [optimizer], run)


@step()
def gradients_kept_between_steps() -> Training:
    """Gradients accumulate over calls; every second call updates."""
    model = Perceptron(6, 8, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = torch.randn(4, 5, 6)
    count = 0

    def run() -> torch.Tensor:
        nonlocal count
        loss = model(batches[count % 4]).square().mean()
        loss.backward()
        count += 1
        if count % 2 == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        return loss

    return Training([model], [optimizer], run)


@step()
def schedulers_and_parameter_groups() -> Training:
    model = Perceptron(6, 8, 3)
    optimizer = torch.optim.SGD(
        [
            {"params": model.first.parameters(), "lr": 0.01, "weight_decay": 0.1},
            {"params": model.second.parameters(), "momentum": 0.5},
        ],
        lr=0.1,
    )
    warm_up = LambdaLR(optimizer, lambda number: min(1.0, (number + 1) / 4))
    x, target = torch.randn(5, 6), torch.randint(0, 3, (5,))

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        warm_up.step()
        return loss

    return Training([model], [optimizer], run)


@step()
def one_cycle_schedule() -> Training:
    model = Perceptron(6, 8, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=100_000)
    x, target = torch.randn(5, 6), torch.randn(5, 3)

    def run() -> torch.Tensor:
        loss = F.mse_loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss

    return Training([model], [optimizer], run)


@step()
def exponential_moving_average() -> Training:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.Adam(model.parameters())
    x, target = torch.randn(5, 6), torch.randn(5, 3)

    def run() -> torch.Tensor:
        loss = F.mse_loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        return loss

    return Training([model, average], [optimizer], run)


@step()
def stochastic_weight_averaging() -> Training:
    model = Perceptron(6, 8, 3)
    average = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, target = torch.randn(5, 6), torch.randn(5, 3)

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        return loss

    return Training([model, average], [optimizer], run)


@step()
def sharpness_aware_minimization() -> Training:
    """SAM: the gradient at the worst near point updates the original weights."""
    model = Perceptron(6, 8, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    x, target = torch.randn(5, 6), torch.randint(0, 3, (5,))

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        moves = [0.05 / (norm + 1e-12) * gradient for gradient in gradients]
        with torch.no_grad():
            torch._foreach_add_(list(model.parameters()), moves)
        optimizer.zero_grad()
        F.cross_entropy(model(x), target).backward()
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), moves)
        optimizer.step()
        return loss

    return Training([model], [optimizer], run)


STEPS = steps_of(globals())
