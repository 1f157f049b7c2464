"""Comprehensions, generator expressions, map, partial, and a lambda that is called twice on one line."""

from functools import partial, reduce

import torch


def setup():
    torch.manual_seed(0)
    return [torch.randn(4, 4, requires_grad=True) for _ in range(3)], torch.randn(2, 4)


def layer(w, x, slope):
    y = x @ w
    return torch.where(y > 0, y, y * slope)


def halve(x):
    return x / 2


def step(state):
    weights, x = state
    leaky = partial(layer, slope=0.1)
    heads = [leaky(w, x) for w in weights]
    norms = {i: h.norm() for i, h in enumerate(heads)}
    total = sum(h.sum() for h in heads)
    halves = list(map(halve, heads))
    square = lambda v: v * v
    both = square(halves[0]) + square(halves[1])
    chained = reduce(lambda a, w: torch.sin(a @ w), weights, x)
    biggest = max((h.abs().max() for h in heads), key=lambda m: m.item())
    pairs = [a * b for a in heads for b in halves if a.shape == b.shape]
    loss = total + both.sum() + chained.sum() + biggest + sum(norms.values()) + torch.stack(pairs).mean()
    loss.backward()
    with torch.no_grad():
        [w.sub_(0.01 * w.grad) for w in weights]
    return loss
