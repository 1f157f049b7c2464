"""Lifetimes: tensors are dead after `del`, rebinding or return."""

import gc
import weakref

import torch


def setup():
    torch.manual_seed(0)
    gc.collect()
    return torch.randn(3, 3), torch.randn(2, 3)


def inner(x, alive):
    temporary = x.sin()
    alive.append(weakref.ref(temporary))
    result = temporary.sum()
    return result


def step(state):
    w, x = state
    h = x @ w
    reference = weakref.ref(h)
    y = h + 1
    del h
    assert reference() is None
    z = y * 2
    assert reference() is None
    reference = weakref.ref(y)
    y = y + z
    assert reference() is None
    y = y + 1
    alive = []
    total = inner(y, alive)
    assert alive[0]() is None
    kept = [y]
    reference = weakref.ref(y)
    del y
    total = total + kept[0].sum()
    assert reference() is not None
    kept.clear()
    assert reference() is None
    box = {"t": total}
    reference = weakref.ref(total)
    total = box.pop("t") + 1
    assert reference() is None
    return total
