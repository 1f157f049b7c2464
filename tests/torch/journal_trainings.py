"""Small trainings that a journal records, and that continue from one of its checkpoints."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler

import nncdbg.torch
from tests.torch.steps.training import same_bits

EPOCHS, BATCH, SAMPLES = 3, 4, 20


class Noisy(Dataset):
    """Samples with noise of all three generators, as augmentations of a user draw it."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(SAMPLES, 6, generator=generator)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        noise = 0.1 * torch.randn(6) + 0.1 * random.random() + 0.1 * np.random.rand()
        x = self.x[index] + noise
        return x.float(), x.sum().float()[None]


class Stream(IterableDataset):
    def __iter__(self):
        data = Noisy()
        return (data[int(torch.randint(SAMPLES, ()))] for _ in range(SAMPLES))


def model():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 1))


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def schedule(optimizer):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=EPOCHS * 5 + 5)


def shuffled(**options):
    return DataLoader(Noisy(), BATCH, shuffle=True, **options)


@dataclass
class Case:
    """One way to train."""

    optimizer: Callable[..., Any] = adam
    scheduler: Callable[..., Any] | None = schedule
    per_epoch: bool = False
    loader: Callable[..., Any] = shuffled
    autocast: bool = False
    scaler: bool = False
    accumulate: int = 1
    model: Callable[..., Any] = model


def weighted():
    weights = torch.arange(1.0, SAMPLES + 1)
    generator = torch.Generator().manual_seed(3)
    return DataLoader(Noisy(), BATCH, sampler=WeightedRandomSampler(weights, SAMPLES, generator=generator))


def own_generator(**options):
    return shuffled(generator=torch.Generator().manual_seed(4), **options)


def distributed():
    sampler = torch.utils.data.DistributedSampler(Noisy(), num_replicas=2, rank=1)
    return DataLoader(Noisy(), 2, sampler=sampler)


def milestones(optimizer):
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2])


def sequence(optimizer):
    rates = torch.optim.lr_scheduler
    return rates.SequentialLR(
        optimizer,
        [rates.LinearLR(optimizer, 0.1, total_iters=3), rates.CosineAnnealingLR(optimizer, 10)],
        milestones=[3],
    )


def bfloat16_model():
    return model().to(torch.bfloat16)


CASES = {
    "dropout, shuffle, AdamW, OneCycleLR": Case(),
    "2 workers": Case(loader=partial(shuffled, num_workers=2)),
    "bf16 autocast": Case(autocast=True),
    "bf16 autocast, 2 workers": Case(autocast=True, loader=partial(shuffled, num_workers=2)),
    "GradScaler": Case(autocast=True, scaler=True),
    "momentum, MultiStepLR": Case(
        optimizer=partial(torch.optim.SGD, lr=0.01, momentum=0.9), scheduler=milestones, per_epoch=True
    ),
    "SequentialLR": Case(scheduler=sequence),
    "RMSprop, no scheduler": Case(optimizer=torch.optim.RMSprop, scheduler=None),
    "Adafactor": Case(optimizer=torch.optim.Adafactor, scheduler=None),
    "accumulation": Case(accumulate=2),
    "loader with a generator of its own": Case(loader=own_generator),
    "2 workers, generator of its own": Case(loader=partial(own_generator, num_workers=2)),
    "WeightedRandomSampler": Case(loader=weighted),
    "DistributedSampler": Case(loader=distributed),
    "iterable dataset": Case(loader=partial(DataLoader, Stream(), BATCH)),
    "drop_last": Case(loader=partial(DataLoader, Noisy(), 6, shuffle=True, drop_last=True)),
    "bfloat16 parameters": Case(model=bfloat16_model),
}


@dataclass
class Trained:
    """A training that has ended."""

    first_step: int
    losses: list[torch.Tensor] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)

    def same_as(self, other):
        """Return whether losses and states have the bits of another training."""
        skipped = self.first_step - other.first_step
        losses = other.losses[skipped:]
        return (
            len(self.losses) == len(losses) > 0
            and all(map(same_bits, self.losses, losses))
            and self.state.keys() == other.state.keys()
            and all(same_bits(self.state[name], each) for name, each in other.state.items())
        )


def train(case, path, *, seed=0, at=None, record=True, **options):
    """Run a training with a seed, or continue one at an address, and return what it computed."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    net = case.model()
    optimizer = case.optimizer(net.parameters())
    objects = {
        "scheduler": None if case.scheduler is None else case.scheduler(optimizer),
        "scaler": torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3) if case.scaler else None,
        "loader": nncdbg.torch.track_loader(case.loader()),
    }
    start = None if at is None else nncdbg.torch.resume(net, optimizer, at, **objects)
    trained = Trained(0 if start is None else start.step)
    first = 0 if start is None else start.epoch

    def run():
        for epoch in range(first, EPOCHS):
            one_epoch(case, net, optimizer, epoch=epoch, trained=trained, **objects)

    if record:
        recorder = nncdbg.torch.flight_recorder(net, optimizer, path, resumed=start, **objects, **options)
        with recorder:
            run()
    else:
        run()
    trained.state = dict(net.state_dict())
    for number, state in optimizer.state_dict()["state"].items():
        trained.state |= {f"{number}.{key}": each for key, each in state.items() if torch.is_tensor(each)}
    return trained


def one_epoch(case, net, optimizer, *, scheduler, scaler, loader, epoch, trained):
    sampler = loader.sampler
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)
    total, count = 0.0, 0
    for x, target in loader:
        with torch.autocast("cpu", torch.bfloat16, enabled=case.autocast):
            output = net(x.to(net[0].weight.dtype) if not case.autocast else x)
        loss = nn.functional.mse_loss(output.float(), target) / case.accumulate
        (loss if scaler is None else scaler.scale(loss)).backward()
        total, count = total + loss.detach(), count + 1
        if count % case.accumulate:
            continue
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        if scheduler is not None and not case.per_epoch:
            scheduler.step()
        optimizer.zero_grad()
        trained.losses.append(total)
        total = 0.0
    if scheduler is not None and case.per_epoch:
        scheduler.step()
