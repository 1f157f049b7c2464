"""NaN and Inf that a layer of a model makes in the forward pass."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.torch.planted.cases import Training, fit, mlp, planted


@planted("forward", "aten.div.Tensor", "inf", "division-by-zero", "a temperature of 0", module="head")
def temperature_zero() -> Training:
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.temperature = nn.Linear(8, 3), 0.0

        def forward(self, x):
            return self.linear(x) / self.temperature  # origin

    model = nn.Sequential()
    model.add_module("body", mlp(4, 8))
    model.add_module("head", Head())
    x, y = torch.randn(4, 4), torch.randint(3, (4,))
    return fit(model, lambda x, y: F.cross_entropy(model(x), y), (x, y))


class MeanSquareNorm(nn.Module):
    """A norm with the variance as E[x^2] - E[x]^2, whose rounding errors a subclass must handle."""

    def moments(self, x):
        """Return mean and variance of the last dimension."""
        mean = x.mean(-1, keepdim=True)
        return mean, (x * x).mean(-1, keepdim=True) - mean * mean


@planted(
    "forward",
    "aten.sqrt.default",
    "nan",
    "sqrt-of-negative",
    "E[x^2] - E[x]^2 of a large mean is negative by rounding",
    module="norm",
    also=("zero-variance-norm",),
)
def norm_by_mean_of_squares() -> Training:
    class Norm(MeanSquareNorm):
        def forward(self, x):
            mean, variance = self.moments(x)
            return (x - mean) / (variance.sqrt() + 1e-5)  # origin

    model = nn.Sequential()
    model.add_module("norm", Norm())
    model.add_module("head", nn.Linear(16, 1))
    x = torch.rand(32, 16) * 1e-3 + 1000
    return fit(model, lambda x: model(x).pow(2).mean(), (x,))


@planted(
    "forward", "aten.div.Tensor", "nan", "zero-variance-norm", "a constant row has deviation 0", module="0"
)
def norm_without_epsilon() -> Training:
    class Norm(nn.Module):
        def forward(self, x):
            centered = x - x.mean(-1, keepdim=True)
            return centered / x.std(-1, keepdim=True)  # origin

    model = nn.Sequential(Norm(), nn.Linear(8, 2))
    x = torch.randn(4, 8)
    x[2] = 3
    return fit(model, lambda x: model(x).pow(2).mean(), (x,))


@planted(
    "forward",
    "aten.native_group_norm.default",
    "nan",
    "zero-variance-norm",
    "a dead channel has variance 0, and eps is 0",
    module="norm",
)
def group_norm_of_dead_channel() -> Training:
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.GroupNorm(4, 4, eps=0.0)
            self.head = nn.Linear(4, 2)
            nn.init.constant_(self.conv.bias[1:2].data, -100)

        def forward(self, image):
            x = self.norm(torch.relu(self.conv(image)))  # origin
            return self.head(x.mean((2, 3)))

    model = Network()
    image, y = torch.randn(4, 1, 6, 6), torch.randint(2, (4,))
    return fit(model, lambda image, y: F.cross_entropy(model(image), y), (image, y))


@planted(
    "forward",
    "aten.native_layer_norm.default",
    "nan",
    "zero-variance-norm",
    "a padded token is zero, and eps is 0",
    module="norm",
)
def layer_norm_of_padding() -> Training:
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(10, 8, padding_idx=0)
            self.norm, self.head = nn.LayerNorm(8, eps=0.0), nn.Linear(8, 10)

        def forward(self, tokens):
            return self.head(self.norm(self.embedding(tokens)))  # origin

    model = Encoder()
    tokens = torch.randint(1, 10, (2, 6))
    tokens[1, 4:] = 0
    return fit(
        model, lambda tokens: F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()), (tokens,)
    )


@planted("forward", "aten.exp.default", "inf", "exp-overflow", "a log variance of 200", module="sample")
def variational_autoencoder() -> Training:
    class Sample(nn.Module):
        def forward(self, mean, logs):
            deviation = torch.exp(0.5 * logs)  # origin
            return mean + deviation * torch.randn_like(mean)

    class Autoencoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.sample, self.decoder = mlp(6, 8, 4), Sample(), mlp(2, 8, 6)
            nn.init.constant_(self.encoder[2].bias[2:].data, 200)

        def forward(self, x):
            mean, logs = self.encoder(x).chunk(2, dim=-1)
            return self.decoder(self.sample(mean, logs))

    model = Autoencoder()
    return fit(model, lambda x: F.mse_loss(model(x), x), (torch.randn(8, 6),))


@planted(
    "forward", "aten.addmm.default", "inf", "matmul-overflow", "an initial scale of 1e10 a layer", module="3"
)
def deep_network_with_large_weights() -> Training:
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(3)])

    class Last(nn.Linear):
        def forward(self, x):
            return F.linear(x, self.weight, self.bias)  # origin

    model.append(Last(8, 8))
    for layer in model:
        nn.init.uniform_(layer.weight, 0, 1e10)
    return fit(model, lambda x: model(x).mean(), (torch.rand(4, 8),))


@planted(
    "forward", "aten.exp.default", "inf", "exp-overflow", "exp of 100 in a checkpointed block", module="block"
)
def checkpointed_block() -> Training:
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return torch.exp(self.linear(x) + 100)  # origin

    model = nn.ModuleDict({"block": Block(), "head": nn.Linear(4, 1)})

    def loss(x):
        hidden = checkpoint(model["block"], x, use_reentrant=False)
        return torch.log(model["head"](hidden).abs() + 1).mean()

    return fit(model, loss, (torch.randn(4, 4),))


@planted(
    "forward",
    "aten.div.Tensor",
    "nan",
    "zero-over-zero",
    "a document without known words: sum 0, count 0",
    module="pool",
    also=("empty-mean", "bad-batch"),
    first_bad_step=1,
)
def mean_of_no_words() -> Training:
    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(12, 4)

        def forward(self, words):
            known = (words > 0).float()[..., None]
            return (self.embedding(words) * known).sum(1) / known.sum(1)  # origin

    model = nn.ModuleDict({"pool": Pool(), "head": nn.Linear(4, 2)})
    good = torch.randint(1, 12, (3, 5))
    bad = good.clone()
    bad[1] = 0
    return fit(model, lambda words: model["head"](model["pool"](words)).pow(2).mean(), (good,), (bad,))


@planted(
    "forward", "aten.div.Tensor", "nan", "zero-over-zero", "routing weights that are all 0", module="mix"
)
def einsum_routing() -> Training:
    class Mix(nn.Module):
        def __init__(self):
            super().__init__()
            self.keys = nn.Parameter(torch.randn(3, 4))

        def forward(self, x):
            gates = torch.relu(torch.einsum("bd,kd->bk", x, self.keys) - 1)
            gates = gates / gates.sum(-1, keepdim=True)  # origin
            return torch.einsum("bk,kd->bd", gates, self.keys)

    model = nn.ModuleDict({"mix": Mix()})
    x = torch.randn(6, 4)
    x[0] = 0
    return fit(model, lambda x: F.mse_loss(model["mix"](x), x), (x,))


@planted(
    "forward",
    "aten.mul.Tensor",
    "inf",
    "matmul-overflow",
    "a recurrent gain of 10 for 45 steps",
    module="cell",
)
def unstable_recurrence() -> Training:
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain, self.step = nn.Parameter(torch.tensor(10.0)), nn.GRUCell(3, 3)

        def forward(self, x, hidden):
            return self.gain * hidden + self.step(x, hidden.clamp(-1, 1))  # origin

    model = nn.ModuleDict({"cell": Cell()})

    def loss(x):
        hidden = torch.ones(2, 3)
        for row in x:
            hidden = model["cell"](row, hidden)
        return hidden.mean()

    return fit(model, loss, (torch.randn(45, 2, 3),))
