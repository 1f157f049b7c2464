"""Half precision, autocast and gradient scalers."""

from __future__ import annotations

import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn import functional as F
from torch.optim import SGD, Adam

from tests.torch.faults.cases import fault


@fault(step=2, op="_to_copy", value="inf", cause="cast out of range")
def logits_in_half_precision() -> None:
    model = nn.Linear(4, 3)
    optimizer = SGD(model.parameters(), lr=1e-6)
    for step in range(1, 4):
        logits = model(torch.rand(5, 4) + 1) * (1e6 if step == 2 else 1)
        half = logits.half()  # FAULT
        optimizer.zero_grad()
        half.float().square().mean().backward()
        optimizer.step()


@fault(step=2, op="sum", value="inf", cause="overflow of half precision", also=("overflow",))
def sum_of_activations() -> None:
    model = nn.Sequential(nn.Linear(4, 64), nn.ReLU())
    nn.init.constant_(model[0].bias, 10.0)
    optimizer = Adam(model.parameters(), lr=1e-4)
    for step in range(1, 4):
        activations = model(torch.randn(16 * (20 if step == 2 else 1), 4))
        total = activations.half().sum()  # FAULT
        optimizer.zero_grad()
        (total.float() * 1e-4).backward()
        optimizer.step()


@fault(step=1, op="addmm", value="inf", cause="overflow of half precision", also=("overflow",))
def linear_under_autocast() -> None:
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((2, 64), 50.0))
            self.bias = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return F.linear(x, self.weight, self.bias)  # FAULT

    model = Head()
    optimizer = SGD(model.parameters(), lr=1e-6)
    for _ in range(2):
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.full((3, 64), 30.0)).float().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=2, op="log", value="inf", cause="log of zero")
def entropy_under_scaler() -> None:
    model = nn.Linear(4, 3)
    optimizer = SGD(model.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=4.0)
    for step in range(1, 4):
        x = torch.randn(5, 4) * (1e5 if step == 2 else 1)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(x)
        probabilities = logits.float().softmax(-1)
        loss = (probabilities * probabilities.log()).sum(-1).mean()  # FAULT
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@fault(step=20, op="div", value="inf", cause="square root at zero in backward")
def scaler_that_skips_each_step() -> None:
    model = nn.Linear(2, 2)
    optimizer = SGD(model.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=2.0**10)
    for _ in range(22):
        with torch.autocast("cpu", torch.bfloat16):
            z = model(torch.randn(3, 2))
        distance = (z - z.detach()).float().square().sum(-1).sqrt()  # FAULT
        optimizer.zero_grad()
        scaler.scale(distance.mean() + z.float().mean()).backward()
        scaler.step(optimizer)
        scaler.update()


@fault(step=1, op="_to_copy", value="inf", cause="gradient overflow", also=("cast out of range",))
def static_loss_scale() -> None:
    model = nn.Linear(4, 1).half()
    optimizer = SGD(model.parameters(), lr=1e-3)
    for _ in range(2):
        prediction = model(torch.rand(2, 4, dtype=torch.float16)).float()  # FAULT
        loss = (prediction - 3).square().mean()
        optimizer.zero_grad()
        (loss * 2.0**20).backward()
        for parameter in model.parameters():
            parameter.grad /= 2.0**20
        optimizer.step()


@fault(step=2, op="mul", value="inf", cause="overflow of half precision", also=("overflow",))
def additive_mask_in_half_precision() -> None:
    model = nn.Linear(4, 4).half()
    optimizer = SGD(model.parameters(), lr=1e-3)
    for step in range(1, 4):
        scores = model(torch.randn(3, 4, dtype=torch.float16))
        hidden = torch.zeros(3, 4, dtype=torch.float16)
        if step == 2:
            hidden[1] = 1
        mask = hidden * -1e9  # FAULT
        loss = torch.softmax(scores + mask, -1).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=2, op="div", value="nan", cause="zero divided by zero")
def root_mean_square_in_half_precision() -> None:
    class RMSNorm(nn.Module):
        def forward(self, x):
            power = x.square().mean(-1, keepdim=True)
            return x / torch.sqrt(power + 1e-8)  # FAULT

    model = nn.Sequential(RMSNorm(), nn.Linear(4, 2)).half()
    optimizer = SGD(model.parameters(), lr=1e-3)
    for step in range(1, 4):
        x = torch.randn(3, 4, dtype=torch.float16)
        if step == 2:
            x[0] = 0
        optimizer.zero_grad()
        model(x).float().square().mean().backward()
        optimizer.step()
