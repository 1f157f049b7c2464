"""Linear regression by hand: functions, lists of parameters, and an update in a loop of one line."""

import torch


def setup():
    torch.manual_seed(0)
    params = [torch.randn(3, 4, requires_grad=True), torch.zeros(4, requires_grad=True)]
    return params, torch.randn(5, 3), torch.randn(5, 4)


def predict(params, x):
    w, b = params
    h = x @ w
    h = h + b
    return h.relu()


def loss_of(params, x, y):
    error = predict(params, x) - y
    squared = error ** 2
    return squared.mean()


def step(state):
    params, x, y = state
    loss = loss_of(params, x, y)
    loss.backward()
    with torch.no_grad():
        for p in params: p -= 0.1 * p.grad
        for p in params:
            p.grad = None
    after = loss_of(params, x, y)
    gain = loss - after
    return gain
