"""NaN and Inf of geometry, physics and unusual training loops in the forward pass."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import LBFGS, SGD, Adam

from tests.torch.planted.cases import Training, Weights, fit, mlp, planted


@planted("forward", "aten.acos.default", "nan", "acos-domain", "a dot product of unit vectors is 1.0000001")
def angle_between_unit_vectors() -> Training:
    model = nn.Linear(3, 3)
    directions = torch.randn(64, 3)

    def loss(directions):
        unit = F.normalize(model(directions), dim=-1)
        cosine = (unit * unit).sum(-1)
        return torch.acos(cosine).mean()  # origin

    return fit(model, loss, (directions,))


@planted("forward", "aten.atanh.default", "inf", "atanh-domain", "tanh rounds to 1 and atanh(1) is inf")
def hyperbolic_distance() -> Training:
    model = nn.Linear(3, 2)
    x = torch.randn(8, 3) * 100

    def loss(x):
        radius = torch.tanh(model(x)).norm(dim=-1).clamp(max=1)
        return torch.atanh(radius).mean()  # origin

    return fit(model, loss, (x,))


@planted("forward", "aten.sqrt.default", "nan", "sqrt-of-negative", "x^2 + y^2 - 2xy is negative by rounding")
def expanded_pairwise_distance() -> Training:
    model = nn.Linear(4, 4)
    points = torch.randn(40, 4) + 1000

    def loss(points):
        z = model(points)
        squares = (z * z).sum(-1)
        distances = torch.sqrt(squares[:, None] + squares[None] - 2 * z @ z.T)  # origin
        return distances.mean()

    return fit(model, loss, (points,))


@planted("forward", "aten.reciprocal.default", "inf", "division-by-zero", "two particles are at one point")
def inverse_square_force() -> Training:
    positions = torch.randn(6, 3)
    positions[4] = positions[1]
    model = Weights(positions)
    pairs = torch.triu_indices(6, 6, offset=1)

    def loss():
        difference = model.weight[pairs[0]] - model.weight[pairs[1]]
        return (1.0 / difference.pow(2).sum(-1)).mean()  # origin

    return fit(model, loss)


@planted("forward", "aten.cumprod.default", "inf", "cumulative-product", "a growth of 10 a step for 50 steps")
def compound_growth() -> Training:
    model = Weights(torch.full((50,), 10.0))

    def loss():
        path = torch.cumprod(model.weight, dim=0)  # origin
        return torch.log1p(path).mean()

    return fit(model, loss)


@planted("forward", "aten.sub.Tensor", "nan", "inf-minus-inf", "the maximum of a row of legal inf is inf")
def nearest_neighbor_weights() -> Training:
    model = nn.Linear(3, 3)
    points, missing = torch.randn(5, 3), torch.zeros(5, 5, dtype=torch.bool)
    missing[2] = True

    def loss(points, missing):
        z = model(points)
        distances = (z[:, None] - z[None]).abs().sum(-1).masked_fill(missing, float("inf"))
        shifted = distances - distances.amin(dim=-1, keepdim=True)  # origin
        return torch.exp(-shifted).mean()

    return fit(model, loss, (points, missing))


@planted(
    "forward", "aten.mul.Tensor", "nan", "zero-times-inf", "(1 - mask) * -inf is NaN where the mask is 1"
)
def mask_by_multiplication() -> Training:
    model = mlp(4, 8, 5)
    x, mask = torch.randn(3, 4), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0])

    def loss(x, mask):
        bias = (1 - mask) * float("-inf")  # origin
        return torch.logsumexp(model(x) + bias, dim=-1).mean()

    return fit(model, loss, (x, mask))


@planted(
    "forward",
    "aten.pow.Tensor_Scalar",
    "nan",
    "sqrt-of-negative",
    "a negative base has no real power of 1 / 2.2",
    module="gamma",
)
def gamma_correction() -> Training:
    class Gamma(nn.Module):
        def forward(self, image):
            return image ** (1 / 2.2)  # origin

    model = nn.Sequential()
    model.add_module("conv", nn.Conv2d(1, 1, 3))
    model.add_module("gamma", Gamma())
    return fit(model, lambda image: model(image).mean(), (torch.randn(2, 1, 6, 6),))


@planted(
    "forward",
    "aten.linalg_solve_triangular.default",
    "inf",
    "division-by-zero",
    "the Cholesky factor has a 0 on its diagonal",
)
def singular_triangular_solve() -> Training:
    model = Weights(torch.eye(3) + torch.tril(torch.rand(3, 3), -1))
    with torch.no_grad():
        model.weight[2, 2] = 0
    y = torch.rand(3, 1) + 1

    def loss(y):
        factor = torch.tril(model.weight)
        whitened = torch.linalg.solve_triangular(factor, y, upper=False)  # origin
        return whitened.pow(2).sum()

    return fit(model, loss, (y,))


@planted(
    "forward",
    "aten.log.default",
    "inf",
    "log-of-zero",
    "the discriminator is certain, and log(1 - 1) follows",
)
def saturated_discriminator() -> Training:
    model = nn.ModuleDict({"generator": mlp(2, 8, 2), "discriminator": mlp(2, 8, 1)})
    optimizers = [Adam(part.parameters(), lr=1e-3) for part in model.values()]
    with torch.no_grad():
        model["discriminator"][2].bias.fill_(50)

    def train(real, noise):
        fake = model["generator"](noise)
        optimizers[1].zero_grad()
        certain = torch.sigmoid(model["discriminator"](real))
        doubted = torch.sigmoid(model["discriminator"](fake.detach()))
        loss = -(torch.log(certain) + torch.log(1 - doubted)).mean()  # origin
        loss.backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        deceived = -torch.log(torch.sigmoid(model["discriminator"](fake))).mean()
        deceived.backward()
        optimizers[0].step()
        return loss.detach() + deceived.detach()

    return Training(model, optimizers, train, [(torch.randn(8, 2), torch.randn(8, 2))])


@planted(
    "forward",
    "aten.div.Tensor",
    "nan",
    "zero-over-zero",
    "the third micro-batch has a total weight of 0",
    also=("empty-mean", "bad-batch"),
)
def accumulated_micro_batches() -> Training:
    model = mlp(4, 8, 1)
    optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y, weights = torch.randn(4, 6, 4), torch.randn(4, 6, 1), torch.rand(4, 6, 1)
    weights[2] = 0

    def train(x, y, weights):
        optimizer.zero_grad()
        total = torch.zeros(())
        for inputs, targets, weight in zip(x, y, weights, strict=True):
            errors = weight * (model(inputs) - targets) ** 2
            loss = errors.sum() / weight.sum()  # origin
            (loss / 4).backward()
            total = total + loss.detach()
        optimizer.step()
        return total / 4

    return Training(model, [optimizer], train, [(x, y, weights)])


@planted(
    "forward", "aten.log.default", "nan", "log-of-negative", "the line search leaves the barrier's domain"
)
def log_barrier_with_closure() -> Training:
    model = Weights(torch.tensor([0.3, 1.0]))
    optimizer = LBFGS(model.parameters(), lr=1, max_iter=4)

    def train():
        def closure():
            optimizer.zero_grad()
            slack = model.weight
            loss = (3 * slack).sum() - 0.1 * slack.log().sum()  # origin
            loss.backward()
            return loss

        return optimizer.step(closure)

    return Training(model, [optimizer], train)


@planted(
    "forward",
    "aten.pow.Tensor_Scalar",
    "inf",
    "learning-rate",
    "a learning rate of 1000 multiplies the error about a thousandfold in each step",
    first_bad_step=6,
    also=("matmul-overflow",),
)
def diverging_regression() -> Training:
    model = nn.Linear(4, 1)
    x = torch.randn(32, 4)
    y = x.sum(-1, keepdim=True)

    def loss(x, y):
        return ((model(x) - y) ** 2).mean()  # origin

    return fit(model, loss, (x, y), lr=1000.0)


@planted(
    "forward",
    "aten.pow.Tensor_Scalar",
    "inf",
    "bad-batch",
    "one pixel of 1e25 is squared",
    first_bad_step=2,
    module="energy",
    also=("matmul-overflow",),
)
def outlier_pixel() -> Training:
    class Energy(nn.Module):
        def forward(self, x):
            return x.pow(2).mean((2, 3))  # origin

    model = nn.Sequential()
    model.add_module("conv", nn.Conv2d(1, 3, 3))
    model.add_module("energy", Energy())
    model.add_module("head", nn.Linear(3, 2))
    images = [torch.randn(2, 1, 6, 6) for _ in range(3)]
    images[2][1, 0, 3, 3] = 1e25
    return fit(model, lambda image: model(image).pow(2).mean(), *[(image,) for image in images])


@planted(
    "forward",
    "aten.empty.memory_format",
    "nan",
    "uninitialized-memory",
    "a buffer is allocated with `torch.empty` and only half of it is filled",
    module="memory",
    naive=False,
    naive_reason="the value comes from memory, which deterministic algorithms fill with NaN",
)
def half_filled_buffer() -> Training:
    class Memory(nn.Module):
        def forward(self, x):
            before = torch.are_deterministic_algorithms_enabled()
            torch.use_deterministic_algorithms(True)
            buffer = torch.empty(4, 3)  # origin
            torch.use_deterministic_algorithms(before)
            buffer[:2] = x
            return buffer

    model = nn.ModuleDict({"memory": Memory(), "head": nn.Linear(3, 1)})
    return fit(model, lambda x: model["head"](model["memory"](x)).mean(), (torch.randn(2, 3),))
