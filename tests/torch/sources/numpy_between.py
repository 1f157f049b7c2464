"""NumPy, files, JSON and counters between the operators."""

import collections
import io
import json

import numpy as np
import torch


def setup():
    torch.manual_seed(0)
    return torch.randn(4, 3, requires_grad=True), np.arange(12, dtype=np.float32).reshape(3, 4)


def augment(images):
    flipped = images[:, ::-1].copy()
    noise = np.linspace(0, 1, flipped.size, dtype=np.float32).reshape(flipped.shape)
    return torch.from_numpy(flipped + noise)


def step(state):
    w, images = state
    counts = collections.Counter()
    x = augment(images)
    y = x @ w
    probabilities = y.softmax(-1)
    array = probabilities.detach().numpy().copy()
    order = np.argsort(array[:, 0])
    counts.update(order.tolist())
    sorted_y = y[torch.from_numpy(order)]
    file = io.StringIO()
    json.dump({"mean": array.mean().item(), "counts": dict(counts)}, file)
    mean = json.loads(file.getvalue())["mean"]
    bias = torch.tensor([mean, 0.0, 1.0])
    z = sorted_y + bias
    rows = []
    for row in z:
        if row.sum().item() > 0:
            rows.append(row * 2)
        else:
            rows.append(row / 2)
    loss = torch.cat(rows).mean()
    print(f"loss {loss:.3f}", file=file)
    loss.backward()
    step_size = float(np.clip(w.grad.norm().item(), 0.0, 1.0))
    with torch.no_grad():
        w.add_(w.grad, alpha=-step_size)
    return loss
