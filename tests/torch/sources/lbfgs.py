"""LBFGS with a closure."""

import torch


def setup():
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.tensor([-1.5, 2.0]))
    return p, torch.optim.LBFGS([p], lr=0.5, max_iter=3)


def rosenbrock(p):
    x, y = p
    a = (1 - x) ** 2
    b = (y - x ** 2) ** 2
    return a + 100 * b


def step(state):
    p, optimizer = state
    losses = []

    def closure():
        optimizer.zero_grad()
        loss = rosenbrock(p)
        loss.backward()
        losses.append(loss.detach())
        return loss

    first = optimizer.step(closure)
    best = torch.stack(losses).min()
    return first - best
