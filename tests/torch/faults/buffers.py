"""Buffers and other states of modules that become NaN or Inf while the loss is finite."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, TensorDataset

from tests.torch.faults.cases import fault


@fault(step=1, op="div", value="nan", cause="zero divided by zero")
def codebook_by_moving_average() -> None:
    class Quantizer(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Linear(4, 2)
            self.register_buffer("codes", torch.randn(5, 2))
            self.register_buffer("counts", torch.zeros(5))
            self.register_buffer("sums", torch.zeros(5, 2))

        def forward(self, x):
            z = self.encoder(x)
            nearest = torch.cdist(z.detach(), self.codes).argmin(1)
            quantized = self.codes[nearest]
            chosen = F.one_hot(nearest, 5).float()
            self.counts.mul_(0.99).add_(chosen.sum(0), alpha=0.01)
            self.sums.mul_(0.99).add_(chosen.t() @ z.detach(), alpha=0.01)
            self.codes.copy_(self.sums / self.counts.unsqueeze(1))  # FAULT
            return F.mse_loss(z, quantized)

    model = Quantizer()
    optimizer = Adam(model.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(3, 4))
        loss.backward()
        optimizer.step()


@fault(step=3, op="native_batch_norm", value="inf", cause="overflow")
def running_variance_of_huge_batch() -> None:
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(6)
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            return self.head(self.norm(x))  # FAULT

    model = Classifier()
    optimizer = SGD(model.parameters(), lr=0.01)
    for step in range(1, 5):
        x, y = torch.randn(12, 6), torch.randint(0, 3, (12,))
        if step == 3:
            x = x * 1e24
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


@fault(step=3, op="div", value="nan", cause="zero divided by zero")
def power_iteration_of_pruned_weight() -> None:
    class SpectralLinear(nn.Module):
        def __init__(self, width, out):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(out, width) * 0.1)
            self.register_buffer("u", F.normalize(torch.randn(out), dim=0))

        def forward(self, x):
            with torch.no_grad():
                v = self.weight.t() @ self.u
                v = v / v.norm()  # FAULT
                u = self.weight @ v
                self.u.copy_(u / u.norm())
            sigma = self.u @ self.weight @ v
            return x @ (self.weight / sigma).t()

    model = SpectralLinear(5, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(1, 5):
        if step == 3:
            with torch.no_grad():
                model.weight.zero_()
        optimizer.zero_grad()
        loss = model(torch.randn(8, 5)).pow(2).mean()
        loss.backward()
        optimizer.step()


@fault(step=1, op="div", value="nan", cause="zero divided by zero")
def variance_of_first_observation() -> None:
    class Normalizer(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.register_buffer("count", torch.tensor(0.0))
            self.register_buffer("mean", torch.zeros(width))
            self.register_buffer("m2", torch.zeros(width))
            self.register_buffer("variance", torch.ones(width))

        def forward(self, x):
            normalized = (x - self.mean) / (self.variance + 1e-5).sqrt()
            self.count += 1
            delta = x[0] - self.mean
            self.mean += delta / self.count
            self.m2 += delta * (x[0] - self.mean)
            self.variance = self.m2 / (self.count - 1)  # FAULT
            return normalized

    policy = nn.Sequential(Normalizer(3), nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = Adam(policy.parameters())
    for _ in range(3):
        loss = policy(torch.randn(1, 3)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=4, op="reciprocal", value="inf", cause="division by zero")
def scale_of_dark_images() -> None:
    class Observer(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(()))

        def forward(self, x):
            out = (x * self.scale).clamp(-127, 127)
            with torch.no_grad():
                self.scale.copy_(127.0 / x.abs().amax())  # FAULT
            return out

    model = nn.Sequential(Observer(), nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 1))
    optimizer = SGD(model.parameters(), lr=1e-5)
    for step in range(1, 6):
        images = torch.rand(4, 1, 6, 6) * (step != 4)
        optimizer.zero_grad()
        loss = model(images).mean()
        loss.backward()
        optimizer.step()


@fault(step=3, op="exp", value="inf", cause="overflow of the exponential")
def memory_of_segments() -> None:
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 4)
            self.memory = torch.zeros(4)

        def forward(self, x):
            h = self.inner(torch.cat([x, self.memory.expand(len(x), 4)], 1))
            self.memory = torch.exp(h.detach().abs().mean(0))  # FAULT
            return torch.tanh(h)

    model = Recurrent()
    nn.init.constant_(model.inner.weight, 0.5)
    optimizer = SGD(model.parameters(), lr=1e-4)
    for step in range(1, 5):
        x = torch.rand(6, 4) * (2000.0 if step == 3 else 0.1)
        model.memory.clamp_(max=1.0)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


@fault(step=1, op="div", value="nan", cause="zero divided by zero")
def bias_correction_of_no_update() -> None:
    class Prototype(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.updates = 0
            self.register_buffer("average", torch.zeros(4))
            self.register_buffer("prototype", torch.zeros(4))

        def forward(self, words):
            features = self.embed(words)
            loss = (features - self.prototype).square().mean()
            self.prototype.copy_(self.average / (1 - 0.9**self.updates))  # FAULT
            self.average.mul_(0.9).add_(features.detach().mean(0), alpha=0.1)
            self.updates += 1
            return loss

    model = Prototype()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randint(0, 10, (6,))).backward()
        optimizer.step()


@fault(step=2, op="log", value="inf", cause="log of zero")
def center_of_sharp_teacher() -> None:
    class Teacher(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)
            self.register_buffer("center", torch.zeros(3))

        def forward(self, x):
            logits = self.head(x)
            with torch.no_grad():
                probabilities = logits.softmax(-1).mean(0)
                self.center = torch.log(probabilities)  # FAULT
            return logits

    model = Teacher()
    optimizer = SGD(model.parameters(), lr=1e-12)
    for step in range(1, 4):
        x = torch.randn(1, 4).expand(5, 4) * (1e5 if step == 2 else 1)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


@fault(step=3, op="std", value="nan", cause="variance of one element")
def deviation_of_last_batch() -> None:
    class Whitening(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("std", torch.ones(4))

        def forward(self, x):
            whitened = x / (self.std + 1e-3)
            self.std.lerp_(x.std(dim=0), 0.1)  # FAULT
            return whitened

    model = nn.Sequential(Whitening(), nn.Linear(4, 1))
    optimizer = SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(9, 4), torch.randn(9, 1)), batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
