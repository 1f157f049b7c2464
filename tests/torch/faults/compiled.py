"""A NaN or Inf in compiled code: of a wrong backend alone, and one of the model itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.nn import functional as F
from torch.optim import SGD, Adam

from tests.torch.faults.cases import COMPILED, fault

aten = torch.ops.aten


def backend(target: Any, wrong: Callable[..., Any]) -> Any:
    """Return a compiler whose kernel of one operator is wrong."""

    def compile_graph(graph: Any, inputs: Any) -> Any:
        for node in graph.graph.nodes:
            if node.target is target:
                node.target = wrong
        graph.recompile()
        return graph.forward

    return aot_autograd(fw_compiler=compile_graph, bw_compiler=compile_graph)


@fault(step=2, op="softplus", value="inf", cause=COMPILED)
def softplus_without_threshold() -> None:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            return F.softplus(self.linear(x))  # FAULT

    torch.compiler.reset()
    model = Net()
    compiled = torch.compile(
        model, backend=backend(aten.softplus.default, lambda x, *_: torch.log(1 + torch.exp(x)))
    )
    optimizer = SGD(model.parameters(), lr=1e-6)
    for step in range(1, 4):
        x = torch.randn(6, 4) * (1e3 if step == 2 else 1)
        optimizer.zero_grad()
        compiled(x).mean().backward()
        optimizer.step()


@fault(step=3, op="rsqrt", value="inf", cause=COMPILED)
def rsqrt_without_epsilon() -> None:
    class RMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight  # FAULT

    torch.compiler.reset()
    model = nn.Sequential(RMSNorm(), nn.Linear(4, 1))
    wrong = backend(aten.rsqrt.default, lambda x: 1 / (x - 1e-5).clamp_min(0).sqrt())
    compiled = torch.compile(model, backend=wrong)
    optimizer = Adam(model.parameters(), lr=1e-3)
    for step in range(1, 5):
        x = torch.randn(5, 4)
        if step == 3:
            x[2] = 0
        loss = compiled(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=2, op="_softmax", value="nan", cause=COMPILED)
def softmax_without_maximum() -> None:
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(4, 12)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            weights = torch.softmax(q @ k.transpose(-1, -2), -1)  # FAULT
            return weights @ v

    torch.compiler.reset()
    model = Attention()
    wrong = backend(aten._softmax.default, lambda x, dim, half: x.exp() / x.exp().sum(dim, keepdim=True))
    compiled = torch.compile(model, backend=wrong)
    optimizer = SGD(model.parameters(), lr=1e-6)
    for step in range(1, 4):
        x = torch.randn(2, 5, 4) * (100 if step == 2 else 1)
        optimizer.zero_grad()
        compiled(x).square().mean().backward()
        optimizer.step()


@fault(step=1, op="logsumexp", value="inf", cause=COMPILED)
def logsumexp_without_maximum() -> None:
    torch.compiler.reset()
    wrong = backend(aten.logsumexp.default, lambda x, dim, keepdim=False: x.exp().sum(dim, keepdim).log())

    @torch.compile(backend=wrong)
    def energy(logits):
        return torch.logsumexp(logits, dim=-1)  # FAULT

    model = nn.Linear(3, 5)
    nn.init.constant_(model.bias, 100.0)
    optimizer = SGD(model.parameters(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        energy(model(torch.randn(4, 3))).mean().backward()
        optimizer.step()


@fault(step=2, op="sigmoid_backward", value="nan", cause=COMPILED)
def backward_of_sigmoid() -> None:
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.value = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return torch.sigmoid(self.gate(x)) * self.value(x)  # FAULT

    torch.compiler.reset()
    model = Gated()
    wrong = backend(aten.sigmoid_backward.default, lambda g, y: g * y * y * (1 - y) / (y * (y < 1)))
    compiled = torch.compile(model, backend=wrong)
    optimizer = SGD(model.parameters(), lr=1e-4)
    for step in range(1, 4):
        x = torch.randn(4, 3) * (1e3 if step == 2 else 1)
        loss = compiled(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=1, op="tanh", value="nan", cause=COMPILED)
def tanh_by_exponentials() -> None:
    torch.compiler.reset()
    wrong = backend(aten.tanh.default, lambda x: ((2 * x).exp() - 1) / ((2 * x).exp() + 1))
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    nn.init.constant_(model[0].bias, 60.0)
    compiled = torch.compile(model, backend=wrong)
    optimizer = Adam(model.parameters(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        compiled(torch.rand(3, 2)).square().mean().backward()  # FAULT
        optimizer.step()


@fault(step=3, op="log", value="inf", cause="log of zero")
def compiled_model_of_its_own() -> None:
    class Likelihood(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x):
            probabilities = self.out(torch.tanh(self.hidden(x))).softmax(-1)
            return torch.log(probabilities)  # FAULT

    torch.compiler.reset()
    model = Likelihood()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    optimizer = SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    for step in range(1, 5):
        if step == 3:
            with torch.no_grad():
                model.out.weight.mul_(1e4)
        optimizer.zero_grad()
        F.nll_loss(compiled(x), y).backward()
        optimizer.step()
