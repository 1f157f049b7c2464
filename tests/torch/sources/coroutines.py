"""An asynchronous data source, a class with `__iter__`, `__call__` and operators of its own."""

import asyncio

import torch


class Vector:
    def __init__(self, data):
        self.data = data

    def __add__(self, other):
        return Vector(self.data + other.data)

    def __mul__(self, k):
        data = self.data * k
        return Vector(data)

    def __iter__(self):
        for part in self.data.unbind():
            yield part.exp()

    def __call__(self, x):
        return (self.data * x).sum()


async def fetch(x, k):
    y = x * k
    await asyncio.sleep(0)
    y = y + 1
    return y


async def gather(x):
    first = await fetch(x, 1)
    a, b = await asyncio.gather(fetch(first, 2), fetch(first, 3))
    return a - b


def setup():
    torch.manual_seed(0)
    return torch.randn(3, requires_grad=True)


def step(w):
    x = asyncio.run(gather(w))
    v = Vector(x) + Vector(w) * 2
    total = torch.zeros(())
    for part in v:
        total = total + part
    match total.dim():
        case 0:
            y = total * 2
        case _:
            y = total
    out = y + v(w)
    out.backward()
    return out
