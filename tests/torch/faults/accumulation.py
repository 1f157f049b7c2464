"""Faults in one of several parts of a step."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from tests.torch.faults.cases import fault


@fault(step=2, op="mean", value="nan", cause="empty reduction")
def part_without_masked_tokens() -> None:
    model = nn.Sequential(nn.Embedding(8, 6), nn.Linear(6, 8))
    optimizer = Adam(model.parameters(), lr=1e-3)
    for step in range(1, 4):
        optimizer.zero_grad()
        for part in range(3):
            tokens = torch.randint(0, 8, (2, 5))
            mask = torch.zeros(2, 5, dtype=torch.bool)
            mask[:, 1] = not (step == 2 and part == 1)
            losses = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten(), reduction="none")
            loss = losses[mask.flatten()].mean()  # FAULT
            (loss / 3).backward()
        optimizer.step()


@fault(step=2, op="div", value="nan", cause="zero divided by zero")
def division_by_number_of_tokens() -> None:
    model = nn.Linear(4, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(1, 4):
        total, tokens = torch.zeros(()), torch.zeros(())
        for _ in range(2):
            mask = (torch.rand(6) < 2) & (torch.tensor(step) != 2)
            losses = model(torch.randn(6, 4)).square().mean(-1)
            total = total + (losses * mask).sum()
            tokens = tokens + mask.sum()
        loss = total / tokens  # FAULT
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=1, op="exp", value="inf", cause="overflow of the exponential")
def clipped_with_error() -> None:
    model = nn.Linear(3, 2)
    optimizer = Adam(model.parameters(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        for part in range(3):
            rate = model(torch.rand(4, 3)) + (200 if part == 2 else 0)
            loss = (torch.exp(rate) - rate).mean() / 3  # FAULT
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()


@fault(step=2, op="std", value="nan", cause="variance of one element")
def last_part_of_one_sample() -> None:
    model = nn.Linear(4, 2)
    optimizer = SGD(model.parameters(), lr=0.01)
    for sizes in ([4, 4], [4, 1], [4, 4]):
        optimizer.zero_grad()
        for size in sizes:
            features = model(torch.randn(size, 4))
            loss = (1 - features.std(0)).relu().mean()  # FAULT
            loss.backward()
        optimizer.step()


@fault(step=1, op="div", value="nan", cause="zero divided by zero")
def cosine_of_empty_sample() -> None:
    tower = nn.Linear(4, 3, bias=False)
    optimizer = SGD(tower.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        for part in range(2):
            x = torch.randn(3, 4)
            if part == 1:
                x[2] = 0
            z = tower(x)
            unit = z / z.norm(dim=1, keepdim=True)  # FAULT
            (unit @ unit.t()).mean().backward()
        optimizer.step()


@fault(step=3, op="mul", value="inf", cause="overflow")
def hidden_state_of_chunks() -> None:
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.input = nn.Linear(3, 4)

        def forward(self, x, hidden):
            grown = hidden * 1e15  # FAULT
            return grown + torch.tanh(self.input(x))

    cell = Cell()
    optimizer = Adam(cell.parameters(), lr=1e-3)
    hidden = torch.ones(2, 4)
    for _ in range(4):
        hidden = cell(torch.randn(2, 3), hidden.detach())
        loss = hidden.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=2, op="pow", value="inf", cause="overflow")
def sum_of_losses() -> None:
    encoder, head = nn.Linear(3, 4), nn.Linear(4, 1)
    optimizer = SGD([*encoder.parameters(), *head.parameters()], lr=1e-3)
    for step in range(1, 4):
        optimizer.zero_grad()
        losses = []
        for task in range(3):
            prediction = head(encoder(torch.randn(5, 3)).tanh())
            error = prediction * (1e25 if (step, task) == (2, 1) else 1.0)
            losses.append((error**2).mean())  # FAULT
        torch.stack(losses).sum().backward()
        optimizer.step()
