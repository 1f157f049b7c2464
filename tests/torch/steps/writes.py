"""In-place writes, views, and scattered reads and writes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.torch.steps.training import Training, step, steps_of, trained


@step()
def write_to_slices_of_activation() -> Training:
    model = nn.Linear(6, 6)
    x = torch.randn(4, 6)

    def loss_of() -> torch.Tensor:
        h = model(x)
        h[:, 1:] += x[:, :-1]
        h[0] = 0.5
        h[1:, ::2] *= 2
        h[..., -1].tanh_()
        return h.square().mean()

    return trained(model, torch.optim.SGD(model.parameters(), 0.1), loss_of)


@step()
def masked_writes() -> Training:
    model = nn.Linear(6, 6)
    x = torch.randn(4, 6)

    def loss_of() -> torch.Tensor:
        h = model(x)
        h[h < -0.5] = -0.5
        h.masked_fill_(x > 1, 0.0)
        h = h.masked_scatter(x < -1, x.flip(0))
        h[x.abs() < 0.3] *= 3
        return h.exp().mean()

    return trained(model, torch.optim.SGD(model.parameters(), 0.1), loss_of)


@step()
def copy_into_slices_of_buffer() -> Training:
    model = nn.ModuleList(nn.Linear(4, 3) for _ in range(3))
    x, target = torch.randn(5, 4), torch.randn(5, 9)

    def loss_of() -> torch.Tensor:
        joined = torch.zeros(5, 9)
        for number, layer in enumerate(model):
            joined[:, 3 * number : 3 * number + 3].copy_(layer(x))
        joined.narrow(1, 2, 2).add_(1.0)
        return F.mse_loss(joined, target)

    return trained(model, torch.optim.Adam(model.parameters()), loss_of)


@step()
def index_put_and_index_add() -> Training:
    model = nn.Linear(4, 3)
    x = torch.randn(6, 4)
    index = torch.tensor([0, 2, 2, 1, 0, 3])

    def loss_of() -> torch.Tensor:
        h = model(x)
        pooled = torch.zeros(4, 3).index_add(0, index, h)
        pooled.index_put_((index[:3], torch.tensor([0, 1, 1])), h[:3, 0], accumulate=True)
        pooled[torch.tensor([3, 1])] = h[4:]
        return pooled.index_select(1, torch.tensor([2, 0])).square().sum()

    return trained(model, torch.optim.SGD(model.parameters(), 0.05), loss_of)


@step()
def writes_through_transposed_and_strided_views() -> Training:
    model = nn.Linear(6, 6)
    x = torch.randn(6, 6)

    def loss_of() -> torch.Tensor:
        h = model(x)
        h.t()[1].mul_(2.0)
        h.view(3, 2, 6).permute(2, 0, 1)[0] += 1.0
        h.diagonal().fill_(0.25)
        h.unfold(1, 3, 3)[:, 0].clamp_(max=0.5)
        torch.as_strided(h, (3,), (7,), 1).neg_()
        return h.flatten().roll(3).square().mean()

    return trained(model, torch.optim.SGD(model.parameters(), 0.1), loss_of)


@step()
def in_place_activations_and_out_arguments() -> Training:
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(inplace=True), nn.Linear(5, 5), nn.Hardswish(inplace=True))
    x = torch.randn(4, 5)
    result = torch.zeros(4)

    def loss_of() -> torch.Tensor:
        h = (F.leaky_relu_(model(x), 0.2) + 1.0).div_(2.0).addcmul_(x, x, value=0.1)
        torch.sum(h.detach(), dim=1, out=result)
        return (h.sigmoid_() * result[:, None]).mean()

    return trained(model, torch.optim.Adam(model.parameters()), loss_of, {"result": result})


@step()
def scatter_and_gather() -> Training:
    model = nn.Linear(4, 6)
    x = torch.randn(5, 4)
    index = torch.randint(0, 6, (5, 3))

    def loss_of() -> torch.Tensor:
        h = model(x)
        chosen = h.gather(1, index)
        added = torch.zeros(5, 6).scatter_add(1, index, chosen)
        reduced = torch.zeros(5, 6).scatter_reduce(1, index, chosen, "amax", include_self=False)
        placed = torch.ones(5, 6).scatter(1, index[:, :1], chosen[:, :1])
        taken = torch.take_along_dim(h, h.argsort(1), dim=1)
        return (added * reduced + placed.square() + taken.cumsum(1)).mean()

    return trained(model, torch.optim.SGD(model.parameters(), 0.1), loss_of)


@step()
def graph_convolution_with_index_add() -> Training:
    """Messages along edges, normalized by degree."""
    first, second = nn.Linear(4, 8), nn.Linear(8, 2)
    model = nn.ModuleList([first, second])
    x, target = torch.randn(7, 4), torch.randint(0, 2, (7,))
    source, sink = torch.randint(0, 7, (2, 15))

    def loss_of() -> torch.Tensor:
        degree = torch.zeros(7).index_add_(0, sink, torch.ones(15)).clamp_(min=1)
        h = x
        for layer in model:
            h = layer(h)
            h = h + torch.zeros_like(h).index_add_(0, sink, h[source]) / degree[:, None]
        return F.cross_entropy(h, target)

    return trained(model, torch.optim.Adam(model.parameters()), loss_of)


class Ring(nn.Module):
    """A linear layer that keeps its last outputs in a buffer, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("memory", torch.zeros(4, 3))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Any) -> Any:
        h = self.layer(x)
        with torch.no_grad():
            self.memory[int(self.calls) % 4] = h.mean(0)
            self.calls += 1
        return h - self.memory.mean(0)


@step()
def buffers_written_in_forward() -> Training:
    model = Ring()
    x = torch.randn(5, 4)
    return trained(model, torch.optim.SGD(model.parameters(), 0.1), lambda: model(x).abs().mean())


@step()
def memory_queue_of_contrastive_loss() -> Training:
    """MoCo: a moving-average encoder and a queue whose oldest rows are replaced."""
    query, key = nn.Linear(6, 4), nn.Linear(6, 4)
    key.load_state_dict(query.state_dict())
    key.requires_grad_(False)
    optimizer = torch.optim.SGD(query.parameters(), 0.1)
    x = torch.randn(4, 6)
    queue = F.normalize(torch.randn(8, 4), dim=1)
    kept = {"queue": queue}

    def run() -> torch.Tensor:
        q = F.normalize(query(x + 0.1 * torch.randn_like(x)), dim=1)
        with torch.no_grad():
            for slow, fast in zip(key.parameters(), query.parameters(), strict=True):
                slow.lerp_(fast, 0.01)
            k = F.normalize(key(x), dim=1)
        positive = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
        logits = torch.cat([positive, q @ queue.clone().t()], dim=1) / 0.1
        loss = F.cross_entropy(logits, torch.zeros(4, dtype=torch.int64))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            queue[:4] = queue[4:].clone()
            queue[4:] = k
        return loss

    return Training([query, key], [optimizer], run, kept)


STEPS = steps_of(globals())
