"""Closures with nonlocal, recursion and decorators."""

import functools

import torch


def counted(function):
    calls = 0

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        nonlocal calls
        calls += 1
        result = function(*args, **kwargs)
        return result / calls

    return wrapper


@counted
def energy(x, w):
    y = x @ w
    return y.square().mean()


def tree(x, depth):
    if depth == 0:
        return x.sin()
    left = tree(x * 2, depth - 1)
    right = tree(x / 2, depth - 1)
    return left + right


def averager():
    mean = torch.zeros(())
    n = 0

    def add(value):
        nonlocal mean, n
        n += 1
        mean = mean + (value - mean) / n
        return mean

    def read():
        return mean * 1.0

    return add, read


def setup():
    torch.manual_seed(0)
    return torch.randn(3, 3, requires_grad=True), torch.randn(2, 3)


def step(state):
    w, x = state
    add, read = averager()
    momentum = torch.zeros_like(w)

    def update(lr):
        nonlocal momentum
        momentum = momentum * 0.9 + w.grad
        with torch.no_grad():
            w.sub_(lr * momentum)

    for k in range(2):
        loss = energy(x, w) + tree(x @ w, 2).sum()
        add(loss.detach())
        w.grad = None
        loss.backward()
        update(0.1)
    final = read()
    return final + momentum.sum()
