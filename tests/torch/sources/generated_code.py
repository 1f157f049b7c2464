"""Functions that `exec` makes from text."""

import torch

TEMPLATE = """
def layer_{n}(x, w):
    h = x @ w
    {activation}
    return h * {n}
"""


def build(n, activation):
    names = {"torch": torch}
    text = TEMPLATE.format(n=n, activation=activation)
    exec(compile(text, f"<layer {n}>", "exec"), names)
    return names[f"layer_{n}"]


def setup():
    torch.manual_seed(0)
    layers = [build(1, "h = torch.sin(h)"), build(2, "h = h.relu() + 1")]
    return layers, torch.randn(3, 3, requires_grad=True), torch.randn(2, 3)


def step(state):
    layers, w, x = state
    h = x
    for layer in layers:
        h = layer(h, w)
    names = {"h": h, "torch": torch}
    exec("g = h * 2\ng = g.sum()\nfor i in range(2): g = g + i * h.mean()", names)
    total = names["g"] + eval("a + b", {"a": h.sum(), "b": h.mean()})
    total.backward()
    return total
