"""Class attributes, properties, slots, `__getattr__`, and names that shadow builtins."""

import torch
from torch import nn


class Config:
    temperature = torch.tensor(0.7)
    clip = 2.0


class Point:
    __slots__ = ("x", "y")

    def __init__(self, x, y):
        self.x = x
        self.y = y

    def norm(self):
        return (self.x.square() + self.y.square()).sqrt()


class Lazy:
    def __init__(self, base):
        self.base = base

    def __getattr__(self, name):
        if name == "doubled":
            return self.base * 2
        raise AttributeError(name)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3))
        self.register_parameter("bias", None)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.__dict__["scale"] = torch.tensor(5.0)

    @property
    def scale(self):
        return self.weight.abs().mean()

    @property
    def normalized(self):
        w = self.weight - self.weight.mean()
        return w / w.std()

    def forward(self, input):
        self.steps += 1
        w = self.normalized * self.scale
        w = w * self.__dict__["scale"]
        input = input @ w
        max = input.amax(-1, keepdim=True)
        input = input - max
        sum = input.exp().sum(-1, keepdim=True)
        return input - sum.log()


def setup():
    torch.manual_seed(0)
    model = Net()
    return model, torch.optim.SGD(model.parameters(), 0.1), torch.randn(5, 4)


def step(state):
    model, optimizer, input = state
    id = model(input / Config.temperature)
    point = Point(id[0], id[1])
    lazy = Lazy(point.norm())
    lazy.base = lazy.base + lazy.doubled
    loss = -id[:, 0].mean() + lazy.base.mean()
    Config.temperature = Config.temperature * 0.9
    point.x = point.x.detach()
    loss = loss + point.norm().mean() * Config.temperature
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
