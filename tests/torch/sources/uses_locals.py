"""A script that uses `locals()`, `vars`, `eval`, `dir` and frames itself."""

import inspect
import sys

import torch


def setup():
    torch.manual_seed(0)
    return torch.randn(3, 3, requires_grad=True), torch.randn(2, 3)


def caller_names():
    return sorted(inspect.currentframe().f_back.f_locals)


def report(**values):
    return {name: float(value.sum()) for name, value in values.items() if isinstance(value, torch.Tensor)}


def forward(w, x):
    h = x @ w
    seen = locals()
    y = h.relu()
    z = y * 2 + h
    return z, sorted(seen)


def evaluated(z):
    y = z.relu()
    z = eval("y * 2 + z")
    return z, report(**vars())


def plain(w, x):
    a = x + 1
    names = caller_names()
    b = a @ w
    same = sys._getframe().f_locals["b"] is b
    return b, names, same


def listed(loss):
    here = dir()
    return here, loss * 1, "shape" in dir(loss)


def step(state):
    w, x = state
    z, before = forward(w, x)
    z, sums = evaluated(z)
    b, names, same = plain(w, x)
    loss = z.sum() + b.sum() + sums["y"]
    here = listed(loss)
    loss.backward()
    return loss, before, names, same, here
