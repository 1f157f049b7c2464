"""Inf that products and eigenvectors make in the backward pass."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.torch.planted.cases import Training, Weights, fit, planted


@planted(
    "backward",
    "aten.mm.default",
    "inf",
    "matmul-overflow",
    "a hidden layer of zeros hides weights of 1e20 until their gradients are multiplied",
    node="AddmmBackward0",
    module="1",
)
def large_weights_behind_zero() -> Training:
    class Middle(nn.Linear):
        def forward(self, x):
            return F.linear(x, self.weight, self.bias)  # origin

    model = nn.Sequential(nn.Linear(4, 4), Middle(4, 4), nn.Linear(4, 4))
    for layer in model:
        nn.init.uniform_(layer.weight, 1e20, 2e20)
        nn.init.zeros_(layer.bias)
    x = torch.zeros(2, 4, requires_grad=True)
    return fit(model, lambda x: model(x).sum(), (x,))


@planted(
    "backward",
    "aten.mul.Tensor",
    "inf",
    "cumulative-product",
    "the gradient grows tenfold in each of 50 steps of a recurrence",
    node="MulBackward0",
)
def gradient_of_long_recurrence() -> Training:
    model = Weights(torch.tensor([10.0]))
    inputs = torch.zeros(50)

    def loss(inputs):
        state = model.weight * 0
        for number in inputs:
            state = 10.0 * state + number  # origin
        return state.sum()

    return fit(model, loss, (inputs,))


@planted(
    "backward",
    "aten.div.Tensor",
    "inf",
    "division-by-zero",
    "1e-40 is subnormal: its log is -92, but its reciprocal overflows",
    node="LogBackward0",
)
def logarithm_of_subnormal() -> Training:
    model = Weights(torch.tensor([0.5, 1e-40, 0.25]))
    return fit(model, lambda: -model.weight.log().mean())  # origin


@planted(
    "backward",
    "aten.div_.Tensor",
    "nan",
    "division-by-zero",
    "eigenvectors of a repeated eigenvalue have no gradient",
    node="LinalgEighBackward0",
    also=("zero-over-zero",),
)
def repeated_eigenvalue() -> Training:
    model = Weights(torch.eye(3))

    def loss():
        finite = torch.nan_to_num(model.weight)  # eigh refuses NaN in the steps after this one
        symmetric = finite @ finite.T
        values, vectors = torch.linalg.eigh(symmetric)  # origin
        return (vectors.abs().sum(0) * values).sum()

    return fit(model, loss)
