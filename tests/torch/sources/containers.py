"""Tensors in dicts, dataclasses, named tuples, lists and attributes; global tensors."""

from collections import namedtuple
from dataclasses import dataclass, field

import torch
from torch import nn

SCALE = torch.tensor([1.0, 2.0, 3.0])
history = []
Output = namedtuple("Output", "logits hidden")


@dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor
    extra: dict = field(default_factory=dict)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({"in": nn.Linear(3, 5), "out": nn.Linear(5, 2)})
        self.register_buffer("mean", torch.zeros(5))
        self.cache = {}

    def forward(self, batch):
        x = batch.x * SCALE
        hidden = self.layers["in"](x)
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
        hidden = hidden - self.mean
        self.cache["hidden"] = hidden
        self.last = hidden.relu()
        logits = self.layers["out"](self.last)
        return Output(logits, self.cache["hidden"])


def setup():
    torch.manual_seed(0)
    net = Net()
    batch = {"x": torch.randn(4, 3), "y": torch.randint(0, 2, (4,)), "meta": {"w": torch.rand(4)}}
    return {"net": net, "opt": torch.optim.SGD(net.parameters(), 0.1), "batch": batch}


def step(state):
    net, opt, batch = state["net"], state["opt"], state["batch"]
    data = Batch(batch["x"], batch["y"])
    data.extra["noisy"] = data.x + 0.01
    batch["shifted"] = batch["x"] - 1
    out = net(data)
    losses = {}
    losses["ce"] = nn.functional.cross_entropy(out.logits, data.y, reduction="none")
    losses["ce"] = (losses["ce"] * batch["meta"]["w"]).mean()
    losses["reg"] = out.hidden.square().mean() * 0.1
    total = sum(losses.values())
    opt.zero_grad()
    total.backward()
    opt.step()
    history.append(total.detach())
    mean = torch.stack(history).mean()
    del batch["shifted"]
    return total, mean
