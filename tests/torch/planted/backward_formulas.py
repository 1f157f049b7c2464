"""NaN and Inf that the formula of a gradient makes, after a finite forward pass."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.torch.planted.cases import Training, Weights, fit, mlp, planted


def gated(x):
    """Return ReLU as a product, whose gradient 0 * Inf is NaN; that of `torch.relu` drops an Inf."""
    return x * (x > 0)


@planted(
    "backward",
    "aten.div.Tensor",
    "inf",
    "sqrt-at-zero-backward",
    "the derivative 1 / (2 sqrt(v)) at a variance of 0",
    node="SqrtBackward0",
    module="sample",
)
def autoencoder_with_variance_of_zero() -> Training:
    class Sample(nn.Module):
        def forward(self, mean, variance):
            return mean + gated(variance).sqrt() * torch.randn_like(mean)  # origin

    class Autoencoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.sample, self.decoder = mlp(6, 8, 4), Sample(), mlp(2, 8, 6)

        def forward(self, x):
            mean, variance = self.encoder(x).chunk(2, dim=-1)
            return self.decoder(self.sample(mean, variance))

    model = Autoencoder()
    return fit(model, lambda x: F.mse_loss(model(x), x), (torch.randn(8, 6),))


@planted(
    "backward",
    "aten.div.Tensor",
    "inf",
    "norm-at-zero-backward",
    "the distance of a point to itself is 0, and its square root has the derivative inf",
    node="SqrtBackward0",
    also=("sqrt-at-zero-backward",),
)
def contrastive_pairwise_distance() -> Training:
    model = mlp(4, 8, 3)
    x, same = torch.randn(6, 4), torch.eye(6)

    def loss(x, same):
        z = F.normalize(model(x), dim=-1)
        squares = ((z[:, None] - z[None]) ** 2).sum(-1)
        distances = torch.sqrt(squares)  # origin
        return (same * distances + (1 - same) * torch.relu(1 - distances)).mean()

    return fit(model, loss, (x, same))


@planted(
    "backward",
    "aten.div.Tensor",
    "inf",
    "norm-at-zero-backward",
    "the norm of a zero state, written by hand",
    node="SqrtBackward0",
    module="reader",
    also=("sqrt-at-zero-backward",),
)
def norm_of_initial_state() -> Training:
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.start, self.cell = nn.Parameter(torch.zeros(4)), nn.GRUCell(3, 4)

        def forward(self, x):
            states = [self.start.expand(x.shape[1], 4)]
            for row in x:
                states.append(self.cell(row, states[-1]))
            squares = torch.stack(states).pow(2).sum(-1)
            return squares.sqrt()  # origin

    model = nn.ModuleDict({"reader": Reader()})
    return fit(model, lambda x: model["reader"](x).mean(), (torch.randn(5, 2, 3),))


@planted(
    "backward",
    "aten.div.Tensor",
    "nan",
    "where-trap-backward",
    "the gradient 0 of the branch not taken is divided by sqrt(0)",
    node="SqrtBackward0",
)
def square_root_under_where() -> Training:
    model = nn.Linear(3, 1)
    x = torch.randn(16, 3)

    def loss(x):
        energy = gated(model(x))
        root = torch.sqrt(energy)  # origin
        return torch.where(energy > 0, root, torch.zeros_like(root)).mean()

    return fit(model, loss, (x,))


@planted(
    "backward",
    "aten.div.Tensor",
    "nan",
    "where-trap-backward",
    "log(0) is masked in forward; in backward 0 / 0 remains",
    node="LogBackward0",
)
def logarithm_under_where() -> Training:
    model = mlp(3, 8, 4)
    x = torch.randn(8, 3)

    def loss(x):
        p = gated(model(x))
        logs = torch.log(p)  # origin
        return torch.where(p > 0, logs, -10.0).mean()

    return fit(model, loss, (x,))


@planted(
    "backward",
    "aten.mul.Tensor",
    "nan",
    "where-trap-backward",
    "exp overflows in the branch not taken, and its gradient is 0 * inf",
    node="ExpBackward0",
    module="1",
    also=("zero-times-inf",),
)
def exponential_under_where() -> Training:
    class Unit(nn.Module):
        def forward(self, x):
            negative = torch.exp(x) - 1  # origin
            return torch.where(x > 0, x, negative)

    model = nn.Sequential(nn.Linear(3, 4), Unit(), nn.Linear(4, 1))
    return fit(model, lambda x: model(x).pow(2).mean(), (torch.randn(8, 3) * 1000,))


@planted(
    "backward",
    "aten.div.Tensor",
    "nan",
    "where-trap-backward",
    "the quotient is masked where the count is 0; its gradient is 0 / 0",
    node="DivBackward0",
    also=("zero-over-zero",),
)
def quotient_under_where() -> Training:
    model = Weights(torch.rand(6))
    counts = torch.tensor([3.0, 0.0, 2.0, 1.0, 0.0, 4.0])

    def loss(counts):
        mean = model.weight.square() / counts  # origin
        return torch.where(counts > 0, mean, 0.0).sum()

    return fit(model, loss, (counts,))


@planted(
    "backward",
    "aten.pow.Tensor_Scalar",
    "inf",
    "pow-at-zero-backward",
    "the derivative 0.3 x^(-0.7) at 0",
    node="PowBackward0",
    module="compress",
)
def power_law_compression() -> Training:
    class Compress(nn.Module):
        def forward(self, x):
            return gated(x) ** 0.3  # origin

    model = nn.Sequential()
    model.add_module("conv", nn.Conv1d(1, 2, 3))
    model.add_module("compress", Compress())
    return fit(model, lambda x: model(x).mean(), (torch.randn(2, 1, 10),))


@planted(
    "backward",
    "aten.rsqrt.default",
    "inf",
    "acos-domain",
    "the angle 0 has the derivative -1 / sqrt(1 - 1)",
    node="AcosBackward0",
)
def rotation_angle_of_identity() -> Training:
    model = Weights(torch.tensor([1.0, 0.0]))
    target = torch.tensor([0.0, 1.0])

    def loss(target):
        cosine = model.weight[0]  # from torch 2.14 on, clamp(-1, 1) has the derivative 0 at 1
        angle = torch.acos(cosine)  # origin
        return (angle - 0.5) ** 2 + (model.weight[1] - target[1]) ** 2

    return fit(model, loss, (target,))


@planted(
    "backward",
    "aten.rsqrt.default",
    "inf",
    "acos-domain",
    "arcosh of 1, the distance of two equal points, has the derivative inf",
    node="AcoshBackward0",
)
def hyperbolic_embedding_of_equal_points() -> Training:
    points = torch.randn(4, 2)
    points[3] = points[0]
    model = Weights(points)

    def loss():
        squares = (model.weight[1:] - model.weight[0]).pow(2).sum(-1)
        return torch.acosh(1 + 2 * squares).mean()  # origin

    return fit(model, loss)


@planted(
    "backward",
    "aten.div.Tensor",
    "nan",
    "sqrt-at-zero-backward",
    "the deviation of equal features is the root of 0, and its gradient 0 / 0",
    node="SqrtBackward0",
    module="norm",
    also=("zero-variance-norm",),
)
def root_of_constant_variance() -> Training:
    class Norm(nn.Module):
        def forward(self, x):
            deviation = x.var(-1, keepdim=True).sqrt()  # origin
            return (x - x.mean(-1, keepdim=True)) / (deviation + 1e-5)

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.head = nn.Linear(3, 4, bias=False), Norm(), nn.Linear(4, 1)

        def forward(self, x):
            return self.head(self.norm(self.first(x)))

    model = Network()
    x = torch.randn(5, 3)
    x[1] = 0
    return fit(model, lambda x: model(x).mean(), (x,))


@planted(
    "backward",
    "aten.div.Tensor",
    "inf",
    "sqrt-at-zero-backward",
    "the checkpointed block takes the root of zeros",
    node="SqrtBackward0",
    module="block",
)
def root_in_checkpointed_block() -> Training:
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return gated(self.linear(x)).sqrt()  # origin

    model = nn.ModuleDict({"stem": nn.Linear(4, 4), "block": Block()})
    x = torch.randn(6, 4)
    return fit(
        model, lambda x: checkpoint(model["block"], model["stem"](x), use_reentrant=False).mean(), (x,)
    )
