"""Global tensors that functions replace, class bodies, and a module as a namespace."""

import torch

best = torch.tensor(float("inf"))
running = torch.zeros(3)
table = {}


def observe(x):
    global running, best
    running = 0.9 * running + 0.1 * x.mean(0)
    best = torch.minimum(best, x.norm())
    return x - running


def remember(name):
    def decorator(function):
        def inner(*args):
            table[name] = function(*args)
            return table[name]
        return inner
    return decorator


@remember("square")
def square(x):
    return x * x


class Meter:
    total = torch.zeros(())
    count = 0

    @classmethod
    def add(cls, value):
        cls.total = cls.total + value
        cls.count += 1

    @staticmethod
    def scaled(x, *, by=2.0):
        return x * by


def setup():
    torch.manual_seed(0)
    return torch.randn(4, 3), torch.randn(3, requires_grad=True)


def step(state):
    x, w = state
    for k in range(2):
        y = observe(x * w)
        z = square(y)
        Meter.add(z.mean())
        x = Meter.scaled(x, by=0.5)

    class Local:
        bias = running * 2
        both = bias + best

    loss = Meter.total / Meter.count + Local.both.sum() + table["square"].sum()
    loss.backward()
    globals()["running"] = running + 1
    return loss + running.sum()
