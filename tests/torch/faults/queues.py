"""Queues, memory banks and replay buffers that get a NaN or Inf."""

from __future__ import annotations

from collections import deque

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from tests.torch.faults.cases import fault


@fault(step=3, op="div", value="nan", cause="zero divided by zero")
def momentum_contrast() -> None:
    class MoCo(nn.Module):
        def __init__(self, dim=4, size=8):
            super().__init__()
            self.encoder = nn.Linear(6, dim, bias=False)
            self.register_buffer("queue", F.normalize(torch.randn(dim, size), dim=0))
            self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

        def forward(self, query, key):
            q = F.normalize(self.encoder(query), dim=1)
            with torch.no_grad():
                k = self.encoder(key)
                keys = k / k.norm(dim=1, keepdim=True)  # FAULT
            negative = q @ self.queue.clone()
            at = int(self.pointer)
            self.queue[:, at : at + len(keys)] = keys.t()
            self.pointer[0] = (at + len(keys)) % self.queue.shape[1]
            return F.cross_entropy(negative, torch.zeros(len(q), dtype=torch.long))

    model = MoCo()
    optimizer = SGD(model.parameters(), lr=0.03, momentum=0.9)
    for step in range(1, 5):
        query, key = torch.randn(2, 6), torch.randn(2, 6)
        if step == 3:
            key[1] = 0
        loss = model(query, key)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=3, op="div", value="nan", cause="zero divided by zero")
def memory_bank_after_update() -> None:
    encoder = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3, bias=False))
    bank = F.normalize(torch.randn(10, 3), dim=1)
    optimizer = SGD(encoder.parameters(), lr=0.1)
    for step in range(1, 5):
        index = torch.randperm(10)[:4]
        features = encoder(torch.randn(4, 5))
        loss = F.cross_entropy(features @ bank.t(), index)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        new = features.detach()
        if step == 2:
            new[0] = 0
            bank[index[0]] = 0
        bank[index] = 0.5 * bank[index] + 0.5 * new
        bank /= bank.norm(dim=1, keepdim=True)  # FAULT


@fault(step=3, op="pow", value="inf", cause="power of zero", also=("division by zero",))
def priorities_of_replay() -> None:
    network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = Adam(network.parameters(), lr=1e-3)
    states, priorities = torch.randn(32, 4), torch.ones(32)
    for step in range(1, 5):
        index = torch.multinomial(priorities, 8)
        values = network(states[index]).amax(1)
        error = torch.randn(8) - values
        optimizer.zero_grad()
        error.square().mean().backward()
        surprise = error.detach().abs()
        if step == 3:
            surprise[2] = 0
        priorities[index] = surprise.pow(-0.6)  # FAULT
        optimizer.step()
        if step == 3:
            break


@fault(step=2, op="sqrt", value="nan", cause="square root of a negative number")
def deque_of_features() -> None:
    model = nn.Linear(4, 3)
    optimizer = SGD(model.parameters(), lr=0.01)
    recent = deque([torch.zeros(3)], maxlen=4)
    for step in range(1, 5):
        features = model(torch.randn(6, 4))
        loss = (features - torch.stack([*recent]).mean(0)).square().mean()
        spread = features.detach().var(0) - (10.0 if step == 2 else 0.0)
        recent.append(spread.sqrt())  # FAULT
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=2, op="div", value="nan", cause="zero divided by zero")
def advantages_of_equal_returns() -> None:
    policy = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = Adam(policy.parameters(), lr=1e-2)
    advantages = torch.zeros(16)
    for step in range(1, 4):
        observations, actions = torch.randn(16, 3), torch.randint(0, 2, (16,))
        returns = torch.randn(16) if step != 2 else torch.ones(16)
        advantages.copy_((returns - returns.mean()) / returns.std())  # FAULT
        log_probability = policy(observations).log_softmax(-1).gather(1, actions[:, None])[:, 0]
        loss = -(log_probability * advantages).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=2, op="mean", value="nan", cause="empty reduction")
def center_of_absent_class() -> None:
    class CenterLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Linear(4, 2)
            self.centers = [torch.zeros(2) for _ in range(3)]

        def forward(self, x, labels):
            features = self.features(x)
            loss = (features - torch.stack(self.centers)[labels]).square().mean()
            for label in range(3):
                members = features.detach()[labels == label]
                self.centers[label] = members.mean(0)  # FAULT
            return loss

    model = CenterLoss()
    optimizer = SGD(model.parameters(), lr=0.1)
    for labels in ([0, 1, 2, 0], [0, 1, 1, 0], [2, 1, 0, 0]):
        loss = model(torch.randn(4, 4), torch.tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=3, op="log", value="inf", cause="log of zero")
def queue_of_log_probabilities() -> None:
    class History(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 4)
            self.queue = torch.zeros(6, 4)

        def forward(self, x):
            logits = self.head(x)
            pull = (logits - self.queue.mean(0)).square().mean()
            latest = F.softmax(logits.detach(), -1).log()  # FAULT
            self.queue = torch.cat([self.queue[len(x) :], latest])
            return pull

    model = History()
    optimizer = SGD(model.parameters(), lr=1e-12)
    for step in range(1, 5):
        x = torch.randn(2, 3) * (1e5 if step == 3 else 1)
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()


@fault(step=4, op="mul", value="inf", cause="overflow")
def bank_that_grows() -> None:
    model = nn.Linear(4, 2)
    optimizer = SGD(model.parameters(), lr=0.01)
    bank = torch.ones(5, 2)
    for _ in range(5):
        similarity = torch.tanh(model(torch.randn(3, 4)) @ bank.t() * 1e-30)
        loss = similarity.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bank.mul_(1e13)  # FAULT
