"""Train a small network op by op, then step back through the last training step.

Run `python examples/eager.py`, then `nncdbg eager_trace` to open the trace in the debugger.
"""

from __future__ import annotations

import sys

import numpy as np

import nncdbg


def train(g: nncdbg.Eager, steps: int) -> list[nncdbg.EagerVariable]:
    """Fit a network with one hidden layer to XOR; return the last loss and its gradients."""
    random = np.random.default_rng(0)
    x = g.input("x", np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32))
    t = g.input("t", np.array([[0], [1], [1], [0]], np.float32))
    shapes = {"w1": (2, 8), "b1": (8,), "w2": (8, 1), "b2": (1,)}
    w1, b1, w2, b2 = parameters = [
        g.input(name, random.normal(size=shape).astype(np.float32), requires_grad=True)
        for name, shape in shapes.items()
    ]
    for number in range(steps):
        for parameter in parameters:
            parameter.grad = None
        h = g.Tanh(x @ w1 + b1)
        y = h @ w2 + b2
        error = y - t
        loss = g.ReduceMean(error * error, keepdims=0)
        loss.backward()
        if number % 50 == 0:
            print(f"step {number}: loss {loss.item():.4f}")
        with g.no_grad():
            for parameter in parameters:
                parameter -= 0.2 * parameter.grad  # noqa: PLW2901  It changes the variable, not the name.
    return [loss, *(parameter.grad for parameter in parameters)]


def main(folder: str = "eager_trace") -> None:
    """Train, then save the last step: the trace has what the variables in `last` depend on."""
    g = nncdbg.eager()
    last = train(g, 200)
    print(f"last loss {last[0].item():.6f}, {g.statements} statements")
    g.save(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
