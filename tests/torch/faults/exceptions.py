"""Steps that an exception ends, because PyTorch or the script refuses the NaN."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.distributions import Bernoulli, Categorical, Normal
from torch.nn import functional as F
from torch.optim import SGD, Adam

from tests.torch.faults.cases import fault


@fault(step=3, op="log", value="inf", cause="log of zero")
def binary_cross_entropy() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1), nn.Sigmoid())
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(1, 5):
        prices = torch.rand(16, 4) + 0.1
        if step == 3:
            prices[5, 0] = 0
        returns = torch.log(prices)  # FAULT
        loss = F.binary_cross_entropy(model(returns), torch.rand(16, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=2, op="div", value="nan", cause="zero divided by zero")
def categorical_policy() -> None:
    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, observation):
            direction = observation / observation.norm(dim=-1, keepdim=True)  # FAULT
            return Categorical(logits=self.head(direction))

    policy = Policy()
    optimizer = Adam(policy.parameters(), lr=1e-2)
    for step in range(1, 4):
        observation = torch.randn(5, 4)
        if step == 2:
            observation[3] = 0
        distribution = policy(observation)
        action = distribution.sample()
        loss = -distribution.log_prob(action).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=2, op="exp", value="inf", cause="overflow of the exponential")
def bernoulli_gate() -> None:
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.logit = nn.Linear(3, 1)

        def forward(self, x):
            odds = torch.exp(self.logit(x).abs())  # FAULT
            return odds / (1 + odds)

    gate = Gate()
    optimizer = SGD(gate.parameters(), lr=1e-3)
    for step in range(1, 4):
        x = torch.randn(6, 3) * (1e4 if step == 2 else 1)
        gates = Bernoulli(gate(x))
        loss = -gates.log_prob(torch.ones(6, 1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=3, op="_softmax", value="nan", cause="fully masked row")
def sampled_token() -> None:
    model = nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 7))
    optimizer = Adam(model.parameters())
    token = torch.tensor([2])
    for step in range(1, 5):
        logits = model(token)
        allowed = torch.ones(1, 7, dtype=torch.bool)
        if step == 3:
            allowed[:] = False
        masked = logits.masked_fill(~allowed, float("-inf"))
        probabilities = masked.softmax(-1)  # FAULT
        token = torch.multinomial(probabilities.detach(), 1)[0]
        loss = F.cross_entropy(logits, token)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=2, op="div", value="nan", cause="zero divided by zero")
def decomposition_of_constant_features() -> None:
    model = nn.Linear(4, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(1, 4):
        x = torch.randn(6, 4) * (step != 2)
        features = model(x)
        standardized = (features - features.mean(0)) / features.std(0)  # FAULT
        singular = torch.linalg.svd(standardized, full_matrices=False)[1]
        loss = -singular.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=3, op="mm", value="inf", cause="overflow")
def cholesky_of_covariance() -> None:
    model = nn.Linear(4, 3, bias=False)
    optimizer = Adam(model.parameters(), lr=1e-3)
    for step in range(1, 5):
        z = model(torch.randn(10, 4)).abs() * (1e20 if step == 3 else 1)
        covariance = z.t() @ z  # FAULT
        factor = torch.linalg.cholesky(covariance + torch.eye(3))
        loss = factor.diagonal().log().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=4, op="sqrt", value="nan", cause="square root of a negative number")
def own_assertion() -> None:
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = SGD(model.parameters(), lr=0.01)
    for step in range(1, 6):
        risk = model(torch.rand(8, 2)).square() - (100.0 if step == 4 else 0)
        loss = (risk + 1e-6).sqrt().mean()  # FAULT
        assert torch.isfinite(loss), "the loss is not finite"
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=2, op="sqrt", value="nan", cause="square root of a negative number")
def normal_policy() -> None:
    class Actor(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = nn.Linear(3, 2)
            self.variance = nn.Linear(3, 2)

        def forward(self, state):
            variance = self.variance(state)
            return Normal(self.mean(state), variance.sqrt())  # FAULT

    actor = Actor()
    nn.init.constant_(actor.variance.bias, 20.0)
    optimizer = Adam(actor.parameters(), lr=1e-3)
    for step in range(1, 4):
        distribution = actor(torch.randn(4, 3) * (1e3 if step == 2 else 1))
        loss = -distribution.log_prob(torch.zeros(4, 2)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=3, op="acos", value="nan", cause="outside of the domain")
def own_check_of_loss() -> None:
    class Rotation(nn.Module):
        def __init__(self):
            super().__init__()
            self.axis = nn.Parameter(torch.tensor([1.0, 0.0, 0.0]))

        def forward(self, target):
            cosine = (self.axis * target).sum(-1)
            return torch.acos(cosine).mean()  # FAULT

    model = Rotation()
    optimizer = SGD(model.parameters(), lr=1e-4)
    for step in range(1, 5):
        target = torch.tensor([[0.5, 0.5, 0.7], [0.1, 0.9, 0.3]])
        if step == 3:
            target[0] = torch.tensor([1.01, 0.0, 0.0])
        loss = model(target)
        if math.isnan(loss.item()):
            raise ValueError(f"diverged in step {step}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=2, op="div", value="nan", cause="zero divided by zero")
def index_of_bin() -> None:
    embedding = nn.Embedding(10, 4)
    head = nn.Linear(4, 1)
    optimizer = SGD([*embedding.parameters(), *head.parameters()], lr=0.1)
    for step in range(1, 4):
        values = torch.rand(6) * (step != 2)
        bins = (values / values.max() * 9).long()  # FAULT
        loss = head(embedding(bins)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
