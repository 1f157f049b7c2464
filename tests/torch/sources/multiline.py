"""Statements over several lines."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(
        self,
        x,
        *,
        gate=None,
    ):
        left = self.a(
            x
        )
        right = (
            self.b(x)
            if gate is None
            else self.b(x) * gate
        )
        return (
            left
            .relu()
            .add(right)
            .mul(
                0.5,
            )
        )


def combine(
    first, second,
    third,
):
    return first + \
        second * \
        third


def setup():
    torch.manual_seed(0)
    model = Net()
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(3, 4)


def step(state):
    model, optimizer, x = state
    y = model(
        x.sin(),
        gate=x.cos(),
    )
    parts = {
        "mean": y.mean(),
        "worst": y
        .abs()
        .max(),
        "plain": model(
            x,
        ).sum(),
    }
    loss = combine(
        parts["mean"],
        parts["worst"],
        third=parts["plain"],
    ) + sum(
        v * 0.1
        for v in parts.values()
    )
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    if (
        loss.item() > 0
        and y.sum().item() != 0
    ):
        y = y + 1
    return y.sum(), \
        loss
