"""Frozen, shared and parametrized weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from tests.torch.steps.classic import Perceptron
from tests.torch.steps.training import Training, step, steps_of, trained


@step()
def frozen_parameters() -> Training:
    """A frozen backbone in evaluation mode, and a head that is trained."""
    backbone = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten())
    backbone.eval().requires_grad_(False)
    head = nn.Linear(12, 2)
    model = nn.ModuleDict({"backbone": backbone, "head": head})
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    x, target = torch.randn(5, 1, 4, 4), torch.randint(0, 2, (5,))
    return trained(model, torch.optim.Adam(trainable), lambda: F.cross_entropy(head(backbone(x)), target))


@step()
def low_rank_adapters() -> Training:
    """LoRA: a frozen matrix and two factors, the second of which is initially zero."""
    base = nn.Linear(6, 4).requires_grad_(False)
    down, up = nn.Parameter(torch.randn(2, 6) * 0.1), nn.Parameter(torch.zeros(4, 2))
    model = nn.Module()
    model.base, model.down, model.up = base, down, up
    x, target = torch.randn(5, 6), torch.randn(5, 4)
    return trained(
        model,
        torch.optim.AdamW([down, up], 1e-2),
        lambda: F.mse_loss(base(x) + F.dropout(x, 0.1) @ down.t() @ up.t(), target),
    )


@step()
def weight_norm_and_spectral_norm() -> Training:
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(6, 8)),
        nn.LeakyReLU(),
        parametrizations.spectral_norm(nn.Linear(8, 8), n_power_iterations=2),
        parametrizations.orthogonal(nn.Linear(8, 8), orthogonal_map="cayley"),
    )
    x, target = torch.randn(5, 6), torch.randn(5, 8)
    return trained(model, torch.optim.Adam(model.parameters()), lambda: F.mse_loss(model(x), target))


class Symmetric(nn.Module):
    """Maps a square matrix to a symmetric one."""

    def forward(self, matrix: torch.Tensor) -> torch.Tensor:
        return matrix.triu() + matrix.triu(1).t()


@step()
def custom_parametrization_cached() -> Training:
    model = nn.Linear(4, 4, bias=False)
    parametrize.register_parametrization(model, "weight", Symmetric())
    x = torch.randn(5, 4)

    def loss_of() -> torch.Tensor:
        with parametrize.cached():
            return model(torch.tanh(model(x))).square().mean()

    return trained(model, torch.optim.SGD(model.parameters(), 0.1), loss_of)


@step()
def module_used_twice() -> Training:
    """A siamese network: the same layers, with BatchNorm, run twice in one forward."""
    shared = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Tanh())
    head = nn.Bilinear(4, 4, 2)
    model = nn.ModuleDict({"shared": shared, "head": head})
    left, right, target = torch.randn(5, 6), torch.randn(5, 6), torch.randint(0, 2, (5,))
    return trained(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        lambda: F.cross_entropy(head(shared(left), shared(right)), target),
    )


@step()
def knowledge_distillation() -> Training:
    teacher, student = Perceptron(6, 16, 3), Perceptron(6, 4, 3)
    teacher.eval()
    optimizer = torch.optim.AdamW(student.parameters())
    x, target = torch.randn(5, 6), torch.randint(0, 3, (5,))

    def run() -> torch.Tensor:
        with torch.inference_mode():
            soft = F.softmax(teacher(x) / 2, dim=1)
        logits = student(x)
        loss = F.kl_div(F.log_softmax(logits / 2, dim=1), soft.clone(), reduction="batchmean") * 4
        loss = loss + F.cross_entropy(logits, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return Training([student, teacher], [optimizer], run)


STEPS = steps_of(globals())
