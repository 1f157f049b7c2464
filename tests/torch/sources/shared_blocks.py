"""A Sequential of own modules, with one module twice."""

import torch
from torch import nn


class Scale(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.g = nn.Parameter(torch.ones(d))

    def forward(self, x): return x * self.g


class Mix(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.inner = nn.Linear(d, d, bias=False)
        self.scale = Scale(d)

    def forward(self, x):
        y = self.scale(x)
        y = self.inner(y)
        y = self.scale(y)
        return torch.tanh(y) + x


def setup():
    torch.manual_seed(0)
    mix = Mix(4)
    model = nn.Sequential(mix, Scale(4), mix, mix)
    return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), torch.randn(3, 4)


def step(state):
    model, optimizer, x = state
    y = model(x)
    z = model(y.detach())
    loss = y.pow(2).sum() + z.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
