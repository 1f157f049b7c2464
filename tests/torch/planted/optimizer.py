"""NaN and Inf that the update of an optimizer makes from finite gradients."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import LambdaLR

from tests.torch.planted.cases import Training, Weights, mlp, planted


def dead_network() -> nn.Sequential:
    """Return a network with a dead hidden layer, so that the gradients of its first layer are 0."""
    model = mlp(3, 4, 1)
    with torch.no_grad():
        model[0].bias.fill_(-100)
    return model


def data() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return one batch of a regression."""
    return [(torch.randn(8, 3), torch.randn(8, 1))]


DIVISION = "a dead layer has gradients of 0, and 0 / sqrt(0) has no eps"


@planted("optimizer", "aten.addcdiv_.default", "nan", "optimizer-division", DIVISION, parameter="0.weight")
def adam_without_epsilon() -> Training:
    model = dead_network()
    optimizer = Adam(model.parameters(), lr=1e-3, eps=0)

    def train(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()  # origin
        return loss

    return Training(model, [optimizer], train, data())


@planted("optimizer", "aten.addcdiv_.default", "nan", "optimizer-division", DIVISION, parameter="0.weight")
def rmsprop_without_epsilon() -> Training:
    model = dead_network()
    optimizer = RMSprop(model.parameters(), lr=1e-3, eps=0)

    def train(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()  # origin
        return loss

    return Training(model, [optimizer], train, data())


@planted(
    "optimizer",
    "aten.addcdiv_.default",
    "nan",
    "optimizer-division",
    "an embedding's unused rows: 0 / sqrt(0)",
    parameter="embedding.weight",
)
def adagrad_of_unused_rows() -> Training:
    model = nn.ModuleDict({"embedding": nn.Embedding(10, 4), "head": nn.Linear(4, 1)})
    optimizer = Adagrad(model.parameters(), lr=1e-2, eps=0)

    def train(words):
        optimizer.zero_grad()
        loss = model["head"](model["embedding"](words)).pow(2).mean()
        loss.backward()
        optimizer.step()  # origin
        return loss

    return Training(model, [optimizer], train, [(torch.randint(0, 5, (6,)),)])


@planted(
    "optimizer",
    "aten._foreach_addcdiv_.ScalarList",
    "nan",
    "optimizer-division",
    DIVISION,
    parameter="0.weight",
)
def foreach_adamw_without_epsilon() -> Training:
    model = dead_network()
    optimizer = AdamW(model.parameters(), lr=1e-3, eps=0, foreach=True)

    def train(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()  # origin
        return loss

    return Training(model, [optimizer], train, data())


@planted(
    "optimizer", "aten._fused_adamw_.default", "nan", "optimizer-division", DIVISION, parameter="0.weight"
)
def fused_adamw_without_epsilon() -> Training:
    model = dead_network()
    optimizer = AdamW(model.parameters(), lr=1e-3, eps=0, fused=True)

    def train(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()  # origin
        return loss

    return Training(model, [optimizer], train, data())


@planted("optimizer", "aten.div_.Tensor", "nan", "optimizer-division", DIVISION, parameter="0.weight")
def adadelta_without_epsilon() -> Training:
    model = dead_network()
    optimizer = Adadelta(model.parameters(), eps=0)

    def train(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()  # origin
        return loss

    return Training(model, [optimizer], train, data())


@planted("optimizer", "aten.addcdiv_.default", "nan", "optimizer-division", DIVISION, parameter="0.weight")
def adamax_without_epsilon() -> Training:
    model = dead_network()
    optimizer = Adamax(model.parameters(), eps=0)

    def train(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()  # origin
        return loss

    return Training(model, [optimizer], train, data())


@planted(
    "optimizer",
    "aten.addcmul_.default",
    "inf",
    "optimizer-overflow",
    "the square of a gradient of 1e25 is Inf, and Adam stops updating these weights",
    parameter="weight",
)
def adam_moment_overflow() -> Training:
    model = Weights(torch.rand(4))
    optimizer = Adam(model.parameters(), lr=1e-3)

    def train(x):
        optimizer.zero_grad()
        loss = (model.weight * x).sum()
        loss.backward()
        optimizer.step()  # origin
        return loss

    return Training(model, [optimizer], train, [(torch.full((4,), 1e25),)])


@planted(
    "optimizer",
    "aten.add.Tensor",
    "inf",
    "optimizer-overflow",
    "a weight decay of 1e20 multiplies the weights by 1e20 in each step",
    first_bad_step=1,
    also=("learning-rate",),
    parameter="weight",
)
def weight_decay_overflow() -> Training:
    model = Weights(torch.rand(4) + 1)
    optimizer = SGD(model.parameters(), lr=1.0, weight_decay=1e20)

    def train(x):
        optimizer.zero_grad()
        loss = (model.weight * x).sum()
        loss.backward()
        optimizer.step()  # origin
        return loss

    return Training(model, [optimizer], train, [(torch.rand(4),)])


@planted(
    "optimizer",
    "aten.add_.Tensor",
    "inf",
    "learning-rate",
    "a learning rate of 1e30 times a gradient of 1e10",
    also=("optimizer-overflow",),
    parameter="weight",
)
def huge_learning_rate() -> Training:
    model = Weights(torch.rand(4))
    optimizer = SGD(model.parameters(), lr=1e30, momentum=0.9)

    def train(x):
        optimizer.zero_grad()
        loss = (model.weight * x).sum()
        loss.backward()
        optimizer.step()  # origin
        return loss

    return Training(model, [optimizer], train, [(torch.rand(4) * 1e10 + 1e10,)])


@planted(
    "optimizer",
    "aten.add_.Tensor",
    "nan",
    "learning-rate",
    "the schedule sets a learning rate of Inf, and Inf times the gradient 0 is NaN",
    first_bad_step=2,
    also=("zero-times-inf",),
    parameter="0.weight",
)
def schedule_with_infinite_rate() -> Training:
    model = dead_network()
    optimizer = SGD(model.parameters(), lr=0.01)
    scheduler = LambdaLR(optimizer, lambda epoch: [1.0, 0.5, float("inf")][min(epoch, 2)])

    def train(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()  # origin
        scheduler.step()
        return loss

    return Training(model, [optimizer], train, data())


@planted(
    "optimizer",
    "aten.div.Tensor",
    "nan",
    "optimizer-division",
    "the trust ratio of a zero weight with a zero gradient is 0 / 0",
    also=("zero-over-zero",),
    parameter="0.weight",
)
def layerwise_trust_ratio() -> Training:
    class Lars(Optimizer):
        def __init__(self, parameters, lr):
            super().__init__(parameters, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    ratio = parameter.norm() / parameter.grad.norm()  # origin
                    parameter.sub_(group["lr"] * ratio * parameter.grad)

    model = dead_network()
    with torch.no_grad():
        model[0].weight.zero_()
    optimizer = Lars(model.parameters(), lr=0.01)

    def train(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return Training(model, [optimizer], train, data())
