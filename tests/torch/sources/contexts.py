"""`with` blocks of torch and of the script, try/except/finally."""

from contextlib import contextmanager

import torch
from torch import nn


class Frozen:
    def __init__(self, module):
        self.module = module

    def __enter__(self):
        for p in self.module.parameters():
            p.requires_grad_(False)
        self.norm = sum(p.norm() for p in self.module.parameters())
        return self

    def __exit__(self, *exc):
        self.norm = self.norm * 2
        for p in self.module.parameters():
            p.requires_grad_(True)


@contextmanager
def shifted(x, by):
    moved = x + by
    try:
        yield moved
    finally:
        moved = moved - by


def risky(x):
    y = x.log()
    if not y.isfinite().all():
        raise ValueError("not finite")
    return y


def setup():
    torch.manual_seed(0)
    return nn.Linear(4, 4), nn.Linear(4, 4), torch.randn(3, 4)


def step(state):
    model, teacher, x = state
    with torch.no_grad():
        target = teacher(x)
    with Frozen(teacher) as frozen:
        t = teacher(x) * frozen.norm
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(x)
    with shifted(x, 1.0) as moved, torch.enable_grad():
        y = model(moved)
    try:
        y = y + risky(x)
    except ValueError as error:
        y = y + len(str(error))
    else:
        y = y * 2
    finally:
        y = y - 1
    loss = (y - target - t).square().mean() + half.float().sum()
    loss.backward()
    return loss
