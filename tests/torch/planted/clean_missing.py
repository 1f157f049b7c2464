"""Clean training with missing values: NaN and Inf in the data on purpose."""

from __future__ import annotations

import torch
from torch import nn

from tests.torch.planted.cases import Training, clean, fit, mlp

INF = float("inf")


@clean("log(0) of data is masked, and data has no gradient")
def masked_logarithm_of_data() -> Training:
    model = nn.Linear(4, 1)

    def loss(counts):
        logs = torch.where(counts > 0, counts.log(), 0.0)
        return model(logs).pow(2).mean()

    return fit(model, loss, (torch.randint(0, 3, (8, 4)).float(),))


@clean("the masked log has a safe argument, so that its gradient is finite too")
def twice_masked_logarithm() -> Training:
    model = nn.Linear(4, 3)

    def loss(x):
        p = torch.relu(model(x))
        positive = p > 0
        logs = torch.where(positive, torch.where(positive, p, 1.0).log(), -INF)
        return torch.where(positive, logs, 0.0).mean()

    return fit(model, loss, (torch.randn(8, 4),))


@clean("x / 0 of data is masked")
def masked_quotient_of_data() -> Training:
    model = nn.Linear(1, 1)

    def loss(total, count):
        mean = torch.where(count > 0, total / count, 0.0)
        return model(mean[:, None]).pow(2).mean()

    return fit(model, loss, (torch.tensor([3.0, 0.0, 1.0]), torch.tensor([2.0, 0.0, 0.0])))


@clean("`nan_to_num` replaces missing features")
def missing_features() -> Training:
    model = mlp(3, 8, 1)
    x = torch.randn(6, 3)
    x[2, 1], x[4, 0] = float("nan"), INF
    return fit(model, lambda x: model(torch.nan_to_num(x, posinf=3.0)).pow(2).mean(), (x,))


@clean("targets of NaN are left out of the mean")
def missing_targets() -> Training:
    model = mlp(3, 8, 1)
    y = torch.randn(6, 1)
    y[3] = float("nan")

    def loss(x, y):
        known = ~torch.isnan(y)
        return (model(x)[known] - y[known]).pow(2).mean()

    return fit(model, loss, (torch.randn(6, 3), y))


@clean("`nanmean` standardizes features with missing values")
def mean_without_missing() -> Training:
    model = mlp(3, 8, 1)
    x = torch.randn(6, 3)
    x[2, 1] = float("nan")

    def loss(x):
        centered = x - torch.nanmean(x, dim=0)
        return model(centered.nan_to_num()).pow(2).mean()

    return fit(model, loss, (x,))


@clean("an in-place assignment replaces NaN in a copy of the batch")
def missing_values_in_place() -> Training:
    model = mlp(3, 8, 1)
    x = torch.randn(6, 3)
    x[1] = float("nan")

    def loss(x):
        filled = x.clone()
        filled[filled.isnan()] = 0
        return model(filled).pow(2).mean()

    return fit(model, loss, (x,))
