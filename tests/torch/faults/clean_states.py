"""Clean trainings with states: infinities of initial values, warmup, memory filled later, restored runs."""

from __future__ import annotations

import copy
import io

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel, update_bn

from tests.torch.faults.cases import clean
from tests.torch.faults.clean_masks import INF, train


@clean("the best loss so far starts at Inf")
def best_loss() -> None:
    model, best = nn.Linear(3, 1), INF
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        loss = model(torch.randn(5, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < best:
            best, kept = loss.item(), copy.deepcopy(model.state_dict())
    model.load_state_dict(kept)


@clean("the best loss is a tensor that starts at Inf, and is written to")
def best_loss_as_tensor() -> None:
    model, best = nn.Linear(3, 1), torch.tensor(INF)

    def loss(step):
        value = model(torch.randn(5, 3)).square().mean()
        torch.minimum(best, value.detach(), out=best)
        return value

    train(model, loss)


@clean("a queue of distances is initialized with Inf and filled over the steps")
def queue_of_infinities() -> None:
    class Memory(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.register_buffer("nearest", torch.full((6,), INF))
            self.position = 0

        def forward(self, x):
            z = self.linear(x)
            self.nearest[self.position : self.position + 2] = z.detach().norm(dim=1)
            self.position = (self.position + 2) % 6
            return z

    model = Memory()
    train(model, lambda step: model(torch.randn(2, 3)).square().mean(), steps=5)


@clean("minimum and maximum of an observer start at Inf and -inf")
def quantization_observer() -> None:
    class Observer(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("low", torch.tensor(INF))
            self.register_buffer("high", torch.tensor(-INF))

        def forward(self, x):
            self.low.copy_(torch.minimum(self.low, x.detach().min()))
            self.high.copy_(torch.maximum(self.high, x.detach().max()))
            return x

    model = nn.Sequential(Observer(), nn.Linear(3, 2), Observer())
    train(model, lambda step: model(torch.randn(4, 3)).square().mean())


@clean("the observer is reset to Inf in each epoch")
def observer_with_reset() -> None:
    class Range(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.register_buffer("low", torch.full((2,), INF))

        def reset(self):
            self.low.fill_(INF)

        def forward(self, x):
            z = self.linear(x)
            torch.minimum(self.low, z.detach().amin(0), out=self.low)
            return z

    model = Range()
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model.reset()
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()


@clean("a buffer of `torch.empty` is filled in the first step")
def empty_buffer() -> None:
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.register_buffer("mean", torch.empty(3))
            self.seen = False

        def forward(self, x):
            if not self.seen:
                self.mean.copy_(x.mean(0))
                self.seen = True
            return self.linear(x - self.mean)

    model = Lazy()
    train(model, lambda step: model(torch.randn(4, 3)).square().mean())


@clean("the rollout buffer has NaN in the rows that are not yet written")
def rollout_buffer() -> None:
    policy = nn.Linear(3, 1)
    rewards = torch.full((6,), float("nan"))

    def loss(step):
        rewards[2 * step - 2 : 2 * step] = torch.randn(2)
        value = policy(torch.randn(2 * step, 3))[:, 0]
        return (value - rewards[: 2 * step]).square().mean()

    train(policy, loss)


@clean("a moving average with warmup of its decay")
def average_with_warmup() -> None:
    model = nn.Linear(3, 2)
    shadow = copy.deepcopy(model).requires_grad_(False)
    optimizer = Adam(model.parameters())
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        decay = min(0.999, step / (step + 10))
        with torch.no_grad():
            for average, weight in zip(shadow.parameters(), model.parameters(), strict=True):
                average.lerp_(weight, 1 - decay)


@clean("an averaged model, and statistics of its batch norm at the end")
def weight_averaging() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    averaged = AveragedModel(model)
    optimizer = SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(6, 3)).square().mean().backward()
        optimizer.step()
        averaged.update_parameters(model)
    update_bn([torch.randn(6, 3) for _ in range(2)], averaged)


@clean("running statistics are reset between epochs")
def reset_statistics() -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3))
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model[1].reset_running_stats()
        optimizer.zero_grad()
        model(torch.randn(4, 2, 6)).square().mean().backward()
        optimizer.step()


@clean("spectral norm by parametrization")
def spectral_norm() -> None:
    model = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))
    train(model, lambda step: model(torch.randn(5, 4)).square().mean())


@clean("weights are clipped to [-0.01, 0.01] after each update")
def clipped_weights() -> None:
    critic = nn.Linear(4, 1)
    optimizer = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
    for _ in range(4):
        optimizer.zero_grad()
        critic(torch.randn(4, 4)).mean().backward()
        optimizer.step()
        for parameter in critic.parameters():
            parameter.data.clamp_(-0.01, 0.01)


@clean("rows of weights are normalized after each update, with an epsilon")
def normalized_rows() -> None:
    model = nn.Linear(4, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            model.weight[0] *= step != 2
            model.weight.div_(model.weight.norm(dim=1, keepdim=True).clamp_min(1e-8))


@clean("a resumed run: parameters and moments are loaded from a file")
def resumed_run() -> None:
    def build():
        model = nn.Linear(3, 2)
        return model, AdamW(model.parameters())

    model, optimizer = build()
    train(model, lambda step: model(torch.randn(4, 3)).square().mean(), optimizer=optimizer)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "best": INF}, file)
    file.seek(0)
    saved = torch.load(file)
    second, again = build()
    second.load_state_dict(saved["model"])
    again.load_state_dict(saved["optimizer"])
    train(second, lambda step: second(torch.randn(4, 3)).square().mean(), optimizer=again)


@clean("a frozen backbone that holds an infinite mask")
def frozen_backbone() -> None:
    backbone = nn.Linear(4, 4).requires_grad_(False)
    backbone.register_buffer("mask", torch.tensor([0.0, 0.0, -INF, 0.0]))
    head = nn.Linear(4, 2)

    def loss(step):
        with torch.no_grad():
            weights = (backbone(torch.randn(3, 4)) + backbone.mask).softmax(-1)
        return head(weights).square().mean()

    train(head, loss)


@clean("an evaluation after each update has the value Inf for its perplexity")
def evaluation_with_infinity() -> None:
    model = nn.Linear(3, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            perplexity = torch.exp(model(torch.randn(4, 3)).square().mean() + 1000)
            assert perplexity.isinf()
        model.train()


@clean("metrics of an evaluation are NaN: a class without a sample")
def metrics_without_samples() -> None:
    model = nn.Linear(3, 3)
    optimizer = Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(6, 3)), torch.randint(0, 2, (6,))).backward()
        optimizer.step()
        with torch.no_grad():
            found = model(torch.randn(6, 3)).argmax(-1)
            precision = torch.stack([(found == k).float()[found == k].mean() for k in range(3)])
            float(precision.nanmean())


@clean("a scheduler whose best metric starts at Inf")
def plateau_scheduler() -> None:
    model = nn.Linear(3, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = ReduceLROnPlateau(optimizer, patience=0)
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 3)).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step(loss.item())


@clean("a cycle of learning rates up to 1")
def one_cycle() -> None:
    model = nn.Linear(3, 1)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = OneCycleLR(optimizer, max_lr=1.0, total_steps=5)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 3) * 0.1).square().mean().backward()
        optimizer.step()
        scheduler.step()


@clean("a table of log probabilities is -inf where a transition is not allowed, and is trained elsewhere")
def transitions() -> None:
    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            self.scores = nn.Parameter(torch.zeros(3, 3))
            self.register_buffer("allowed", torch.ones(3, 3).triu().bool())

        def forward(self, path):
            table = self.scores.masked_fill(~self.allowed, -INF).log_softmax(-1)
            return -table[path[:-1], path[1:]].sum()

    model = Chain()
    train(model, lambda step: model(torch.tensor([0, 1, 1, 2])))


@clean("a cache of keys with NaN in the positions that come later")
def cache_of_keys() -> None:
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.register_buffer("cache", torch.full((4, 3), float("nan")), persistent=False)

        def forward(self, x, position):
            self.cache[position] = self.linear(x).detach()
            return self.linear(x) + self.cache[: position + 1].mean(0)

    model = Decoder()
    train(model, lambda step: model(torch.randn(3), step - 1).square().mean())


@clean("gradients are accumulated in own memory from `torch.empty`")
def flat_gradients() -> None:
    model = nn.Linear(3, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    flat = torch.empty(8)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        torch.cat([each.grad.flatten() for each in model.parameters()], out=flat)
        flat.clamp_(-1, 1)
        offset = 0
        for each in model.parameters():
            each.grad.copy_(flat[offset : offset + each.numel()].view_as(each))
            offset += each.numel()
        optimizer.step()


@clean("a dictionary of tensors keeps the best distance of each class, first Inf")
def best_of_each_class() -> None:
    model = nn.Linear(3, 2)
    best = {label: torch.tensor(INF) for label in range(3)}

    def loss(step):
        z = model(torch.randn(3, 3))
        for label in range(3):
            best[label] = torch.minimum(best[label], z[label].detach().norm())
        return z.square().mean()

    train(model, loss)
