"""Parameters and gradients that the script writes to between backward passes and updates."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW

from tests.torch.faults.cases import fault


@fault(step=4, op="div", value="nan", cause="zero divided by zero")
def weight_normalization_of_pruned_row() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(1, 6):
        loss = model(torch.randn(16, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            weight = model[0].weight
            if step == 3:
                weight[5] = 0
            weight /= weight.norm(dim=1, keepdim=True)  # FAULT


@fault(step=2, op="log", value="inf", cause="log of zero")
def weights_in_log_space() -> None:
    model = nn.Linear(3, 3)
    optimizer = Adam(model.parameters(), lr=1e-3)
    for step in range(1, 4):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).exp().mean().backward()
        if step == 2:
            with torch.no_grad():
                model.weight[0, 1] = -1
                model.weight.copy_(model.weight.clamp(min=0).log())  # FAULT
        optimizer.step()


@fault(step=3, op="div", value="inf", cause="division by zero")
def rescaled_checkpoint() -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2))
    optimizer = SGD(model.parameters(), lr=0.01)
    scale = torch.ones(())
    for step in range(1, 5):
        if step == 3:
            scale -= 1
            scaled = {name: value / scale for name, value in model.state_dict().items()}  # FAULT
            model.load_state_dict(scaled)
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(4, 2, 8)), torch.randint(0, 2, (4,))).backward()
        optimizer.step()


@fault(step=3, op="div", value="nan", cause="zero divided by zero")
def new_data_of_weight() -> None:
    model = nn.Linear(4, 2)
    optimizer = SGD(model.parameters(), lr=0.01)
    for step in range(1, 5):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
        if step == 2:
            small = model.weight.data * 0
            model.weight.data = small / small.norm()  # FAULT


@fault(step=3, op="copy", value="inf", cause="bad input")
def weights_from_numpy() -> None:
    model = nn.Bilinear(3, 2, 2)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    for step in range(1, 5):
        if step == 3:
            with np.errstate(divide="ignore"):
                array = np.log(np.arange(12, dtype=np.float32).reshape(2, 3, 2))
            with torch.no_grad():
                model.weight.copy_(torch.from_numpy(array))  # FAULT
        optimizer.zero_grad()
        model(torch.randn(4, 3), torch.randn(4, 2)).square().mean().backward()
        optimizer.step()


@fault(step=2, op="rsqrt", value="inf", cause="division by zero")
def whitening_of_dead_column() -> None:
    model = nn.Linear(5, 4)
    with torch.no_grad():
        model.weight[:, 2] = 0
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.randn(6, 5)
        x[:, 2] = 0
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            scale = model.weight.norm(dim=0).rsqrt()  # FAULT
            model.weight.mul_(scale)


@fault(step=3, op="reciprocal", value="inf", cause="division by zero")
def normalized_before_update() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = Adam(model.parameters(), lr=0.1)
    for step in range(1, 5):
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if step == 3:
            with torch.no_grad():
                weight = model[0].weight
                weight.mul_(1.0 / (weight - weight).norm())  # FAULT
        optimizer.step()


@fault(step=1, op="div", value="nan", cause="zero divided by zero")
def normalized_gradient_of_dead_layer() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    nn.init.constant_(model[0].bias, -100.0)
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (model(torch.randn(8, 3)) - 1).square().mean().backward()
        for parameter in model.parameters():
            parameter.grad.div_(parameter.grad.norm())  # FAULT
        optimizer.step()


@fault(step=2, op="exp", value="inf", cause="overflow of the exponential")
def temperature_by_data() -> None:
    class Contrastive(nn.Module):
        def __init__(self):
            super().__init__()
            self.tower = nn.Linear(4, 3)
            self.temperature = nn.Parameter(torch.ones(1))

        def forward(self, x):
            z = F.normalize(self.tower(x), dim=1)
            return F.cross_entropy(z @ z.t() * self.temperature, torch.arange(len(x)))

    model = Contrastive()
    optimizer = SGD(model.parameters(), lr=0.01)
    for step in range(1, 4):
        optimizer.zero_grad()
        model(torch.randn(6, 4)).backward()
        if step == 2:
            model.temperature.data.mul_(200).exp_()  # FAULT
        optimizer.step()
