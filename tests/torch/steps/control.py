"""Steps whose Python flow depends on tensor values, and steps that share data with NumPy."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.torch.steps.classic import Perceptron
from tests.torch.steps.training import Training, step, steps_of, trained


@step()
def branch_on_item() -> Training:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(6, 4)

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        h = model(x)
        h = h * 2 if h.mean().item() > 0 else h - 1
        loss = h.square().mean()
        if bool(loss < 0.01):
            return loss
        loss.backward()
        if max(float(parameter.grad.norm()) for parameter in model.parameters()) < 1e6:
            optimizer.step()
        return loss

    return Training([model], [optimizer], run)


@step()
def while_loop_until_converged() -> Training:
    """A fixed point: the number of iterations depends on the values."""
    model = nn.Linear(4, 4)
    with torch.no_grad():
        model.weight.mul_(0.5)
    x = torch.randn(3, 4)

    def loss_of() -> torch.Tensor:
        z, change, count = torch.zeros(3, 4), 1.0, 0
        while change > 1e-2 and count < 20:
            following = torch.tanh(model(z) + x)
            change = (following - z).abs().max().item()
            z, count = following, count + 1
        return z.square().mean() + 0.01 * count

    return trained(model, torch.optim.Adam(model.parameters()), loss_of)


@step()
def early_exit_of_layers() -> Training:
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(5))
    halt = nn.Linear(4, 1)
    model = nn.ModuleDict({"layers": layers, "halt": halt})
    x = torch.randn(3, 4)

    def loss_of() -> torch.Tensor:
        h, total = x, torch.zeros(3, 1)
        for layer in layers:
            h = F.elu(layer(h))
            total = total + torch.sigmoid(halt(h))
            if (total > 1.0).all():
                break
        return (h * total).square().mean()

    return trained(model, torch.optim.SGD(model.parameters(), 0.1), loss_of)


@step()
def sizes_from_nonzero_and_unique() -> Training:
    model = nn.Linear(4, 3)
    x, labels = torch.randn(8, 4), torch.tensor([0, 2, 2, 1, 0, 2, 1, 2])

    def loss_of() -> torch.Tensor:
        h = model(x)
        rows = torch.nonzero(h.max(dim=1).values > 0).squeeze(1)
        classes, counts = labels.unique(return_counts=True)
        centers = torch.stack([h[labels == label].mean(0) for label in classes.tolist()])
        pooled = h[rows].sum(0) + torch.repeat_interleave(centers, counts, dim=0).mean(0)
        return torch.split(pooled, [1, 2])[1].square().sum() + torch.where(h > 0)[0].numel() / 100

    return trained(model, torch.optim.SGD(model.parameters(), 0.01), loss_of)


@step()
def batches_from_data_loader() -> Training:
    """Each step takes the next shuffled batch; after the last one an epoch begins."""
    model = Perceptron(4, 8, 3)
    optimizer = torch.optim.Adam(model.parameters())
    dataset = TensorDataset(torch.randn(10, 4), torch.randint(0, 3, (10,)))
    loader = DataLoader(dataset, batch_size=4, shuffle=True)
    batches = iter(loader)

    def run() -> torch.Tensor:
        nonlocal batches
        try:
            x, target = next(batches)
        except StopIteration:
            batches = iter(loader)
            x, target = next(batches)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        return loss

    return Training([model], [optimizer], run)


@step()
def epoch_over_data_loader() -> Training:
    """One step is a whole epoch of a data set in f64, converted per batch."""
    model = Perceptron(3, 6, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    dataset = [(torch.randn(3, dtype=torch.float64), number % 2) for number in range(5)]
    loader = DataLoader(dataset, batch_size=2)

    def run() -> torch.Tensor:
        total = torch.zeros(())
        for x, target in loader:
            loss = F.cross_entropy(model(x.to(torch.float32)), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(x)
        return total / len(dataset)

    return Training([model], [optimizer], run)


@step()
def numpy_interop() -> Training:
    """NumPy computes a target and a weight, and writes the array that shares memory with the batch."""
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    rng = np.random.default_rng(3)
    batch = rng.standard_normal((5, 4)).astype(np.float32)

    def run() -> torch.Tensor:
        prediction = model(torch.from_numpy(batch))
        values = prediction.detach().numpy()
        target = np.clip(np.sort(values, axis=1), -1, 1)
        weight = torch.tensor(np.exp(-np.abs(values - target)))
        optimizer.zero_grad()
        loss = (weight * (prediction - torch.as_tensor(target)).square()).mean()
        loss.backward()
        optimizer.step()
        batch[0] += 0.1
        return loss

    return Training([model], [optimizer], run, {"batch": torch.from_numpy(batch)})


@step()
def numpy_write_into_parameter() -> Training:
    """A constraint that NumPy applies to the memory of a parameter after the update."""
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(5, 4)

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        weight = model.weight.detach().numpy()
        np.clip(weight, -0.3, 0.3, out=weight)
        return loss + float(weight.sum())

    return Training([model], [optimizer], run)


@step()
def top_k_routing_of_experts() -> Training:
    """A mixture of experts: each expert receives the rows that the router gives it."""
    router, experts = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    model = nn.ModuleDict({"router": router, "experts": experts})
    x, target = torch.randn(8, 4), torch.randn(8, 4)

    def loss_of() -> torch.Tensor:
        weights, chosen = router(x).softmax(-1).topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        result = torch.zeros_like(x)
        for number, expert in enumerate(experts):
            rows, slots = torch.where(chosen == number)
            if len(rows):
                result.index_add_(0, rows, expert(x[rows]) * weights[rows, slots, None])
        return F.mse_loss(result, target)

    return trained(model, torch.optim.AdamW(model.parameters()), loss_of)


STEPS = steps_of(globals())
