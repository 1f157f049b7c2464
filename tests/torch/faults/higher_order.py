"""NaN and Inf in the bodies of higher-order operators."""

from __future__ import annotations

import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention
from torch.optim import SGD, Adam

from tests.torch.faults.cases import fault


@fault(step=2, op="log", value="nan", cause="log of a negative number")
def branch_of_condition() -> None:
    class Switch(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x):
            def positive(t):
                return torch.log(t - 100)  # FAULT

            def negative(t):
                return t.tanh()

            return torch.cond(x.sum() > 0, positive, negative, (self.linear(x),))

    model = Switch()
    optimizer = SGD(model.parameters(), lr=0.01)
    for step in range(1, 4):
        x = torch.rand(4, 3) * (1 if step == 2 else -1)
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()


@fault(step=2, op="mul", value="inf", cause="overflow")
def loop_that_doubles() -> None:
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=1e-6)

    def body(i, t):
        return i + 1, t * 1e12  # FAULT

    for step in range(1, 4):
        x = torch.rand(3, 4) + 0.5
        scale = torch.tensor(1e-36 if step != 2 else 1.0)
        with torch.no_grad():
            _, grown = while_loop(lambda i, t: i < 4, body, (torch.tensor(0), x * scale))
        optimizer.zero_grad()
        model(grown).mean().backward()
        optimizer.step()


@fault(step=1, op="mul", value="inf", cause="overflow", also=("overflow of a product",))
def scan_of_products() -> None:
    model = nn.Linear(3, 2)
    optimizer = Adam(model.parameters(), lr=1e-3)

    def combine(carry, row):
        grown = carry * 1e20  # FAULT
        return grown, row + carry * 0.5

    for _ in range(2):
        rows = model(torch.randn(4, 3))
        _, outputs = scan(combine, torch.ones(2), rows, dim=0)
        optimizer.zero_grad()
        outputs.mean().backward()
        optimizer.step()


@fault(step=3, op="div", value="nan", cause="zero divided by zero")
def mapped_rows() -> None:
    model = nn.Linear(4, 3, bias=False)
    optimizer = SGD(model.parameters(), lr=0.1)

    def unit(row):
        return row / row.square().sum()  # FAULT

    for step in range(1, 5):
        x = torch.randn(5, 4)
        if step == 3:
            x[1] = 0
        loss = map_rows(unit, model(x)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=2, op="div", value="inf", cause="division by zero")
def relative_position_of_attention() -> None:
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.1)

    def distance(score, batch, head, query, key):
        return score / (query - key)  # FAULT

    for step in range(1, 4):
        x = torch.randn(1, 1, 6, 4)
        with torch.no_grad():
            attended = flex_attention(x, x, x, score_mod=distance if step == 2 else None)
        optimizer.zero_grad()
        model(attended[0, 0]).square().mean().backward()
        optimizer.step()


@fault(step=2, op="exp", value="inf", cause="overflow of the exponential")
def scan_in_log_space() -> None:
    model = nn.Linear(3, 2)
    optimizer = SGD(model.parameters(), lr=1e-4)

    def add(a, b):
        return torch.log(torch.exp(a) + torch.exp(b))  # FAULT

    for step in range(1, 4):
        states = model(torch.rand(4, 3)) + (100 if step == 2 else 0)
        loss = associative_scan(add, states, dim=0, combine_mode="generic").mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=1, op="div", value="inf", cause="square root at zero in backward")
def root_in_branch() -> None:
    model = nn.Linear(3, 2)
    optimizer = SGD(model.parameters(), lr=0.1)

    def distance(a):
        return (a * 0.0).sqrt()  # FAULT

    for _ in range(2):
        z = model(torch.randn(4, 3))
        loss = torch.cond(z.sum() > -1e9, distance, lambda a: a.sin(), (z,)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=2, op="div", value="inf", cause="division by zero")
def newton_in_loop() -> None:
    model = nn.Linear(2, 1)
    optimizer = Adam(model.parameters(), lr=1e-2)

    def iterate(i, t):
        step = (t * t - 2) / (2 * t)  # FAULT
        return i + 1, t - step

    for step in range(1, 4):
        start = torch.tensor([1.0, 0.0 if step == 2 else 3.0])
        with torch.no_grad():
            root = while_loop(lambda i, t: i < 3, iterate, (torch.tensor(0), start))[1]
        loss = (model(root[None]) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
