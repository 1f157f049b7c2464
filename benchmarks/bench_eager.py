"""Eager sessions: the time per op beyond the array library's own call, and the ratio to that call.

Each chain has 1,000 dependent ops on f32 matrices of 4 x 4.  The bar is 3 us per op.
"""

from __future__ import annotations

import gc
import importlib.util
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from timing import seconds

import nncdbg

OPS = 1000
BAR = 3e-6
"""Seconds per op."""


def chain(step: Callable[[Any], Any], start: Any) -> Callable[[], Any]:
    """Return a function that applies `step` to its own results."""

    def run() -> Any:
        value = start
        for _ in range(OPS):
            value = step(value)
        return value

    return run


def figures(name: str, ours: Callable[[], Any], peer: Callable[[], Any]) -> list[dict[str, Any]]:
    """Return the ratio, and the time beyond the call of the library per op, divided by its bar.

    Both are of the fastest of 61 runs in turn: other processes only add time.
    """
    ours(), peer()
    gc.collect()
    gc.disable()
    try:
        pairs = [(seconds(ours) / OPS, seconds(peer) / OPS) for _ in range(61)]
    finally:
        gc.enable()
    mine, theirs = (min(times) for times in zip(*pairs, strict=True))
    beyond = mine - theirs
    figure = f"eager {name}: time per op beyond the library's own call / 3 us"
    return [
        {
            "figure": f"eager {name} / the library's own call",
            "ours": mine,
            "peer": theirs,
            "ratio": round(mine / theirs, 3),
            "bar": None,
        },
        {"figure": figure, "ours": beyond, "peer": BAR, "ratio": round(beyond / BAR, 3), "bar": 1},
    ]


def measure() -> list[dict[str, Any]]:
    """Return the figures on NumPy, and on PyTorch if it is installed."""
    data = np.full((4, 4), 0.5, np.float32)
    small = np.full((4, 4), 1e-3, np.float32)
    g = nncdbg.eager()
    x, c = g.input("x", data), g.input("c", small)
    tracked = g.input("w", data, requires_grad=True)
    lazy = nncdbg.eager(lazy=True)
    y, d = lazy.input("x", data), lazy.input("c", small)
    add = chain(lambda value: value + small, data)
    found = [
        *figures("a + b on NumPy", chain(lambda value: value + c, x), add),
        *figures(
            "a * 0.5 on NumPy",
            chain(lambda value: value * 0.5, x),
            chain(lambda value: value * np.float32(0.5), data),
        ),
        *figures(
            "g.Transpose(a, perm=[1, 0]) on NumPy",
            chain(lambda value: g.Transpose(value, perm=[1, 0]), x),
            chain(lambda value: np.transpose(value, (1, 0)), data),
        ),
        *figures("a + b on NumPy, with requires_grad", chain(lambda value: value + c, tracked), add),
        *figures("a + b, formed in a lazy session and not executed", chain(lambda value: value + d, y), add),
    ]
    return found + (_on_torch(data, small) if importlib.util.find_spec("torch") is not None else [])


def _on_torch(data: Any, small: Any) -> list[dict[str, Any]]:
    import torch

    g = nncdbg.eager()
    start, step = torch.from_numpy(data), torch.from_numpy(small)
    x, c = g.input("x", start), g.input("c", step)
    ours, peer = chain(lambda value: value + c, x), chain(lambda value: value + step, start)
    with torch.inference_mode():
        return figures("a + b on PyTorch", ours, peer)


if __name__ == "__main__":
    for figure in measure():
        print(json.dumps(figure))
