"""NaN and Inf of half precision: float16 and bfloat16 tensors, autocast and loss scales."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from tests.torch.planted.cases import Training, Weights, fit, mlp, planted


@planted(
    "forward",
    "aten.addmm.default",
    "inf",
    "fp16-overflow",
    "activations above 65504",
    module="2",
    also=("matmul-overflow",),
)
def float16_network() -> Training:
    class Last(nn.Linear):
        def forward(self, x):
            return F.linear(x, self.weight, self.bias)  # origin

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Last(16, 4)).half()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(50, 100)
    return fit(model, lambda x: model(x).float().mean(), (torch.rand(4, 8).half(),))


@planted(
    "forward", "aten._to_copy.default", "inf", "fp16-overflow", "1e5 does not fit in float16", module="cast"
)
def cast_to_float16() -> Training:
    class Cast(nn.Module):
        def forward(self, x):
            return x.half()  # origin

    model = nn.Sequential()
    model.add_module("linear", nn.Linear(3, 3))
    model.add_module("cast", Cast())
    return fit(model, lambda x: model(x).float().mean(), (torch.randn(4, 3) * 1e6,))


@planted(
    "forward",
    "aten.addmm.default",
    "inf",
    "fp16-overflow",
    "autocast computes a linear layer of large inputs in float16",
    module="head",
    also=("matmul-overflow", "bad-batch"),
    first_bad_step=1,
)
def float16_autocast() -> Training:
    class Head(nn.Linear):
        def forward(self, x):
            return F.linear(x, self.weight, self.bias)  # origin

    model = nn.ModuleDict({"head": Head(4, 4)})
    nn.init.constant_(model["head"].weight, 10.0)

    def loss(x):
        with torch.autocast("cpu", dtype=torch.float16):
            return model["head"](x).float().mean()

    return fit(model, loss, (torch.rand(4, 4),), (torch.rand(4, 4) * 1e4 + 1e4,), lr=1e-6)


@planted(
    "forward",
    "aten.log.default",
    "inf",
    "log-of-zero",
    "sigmoid rounds to 1 in bfloat16 from 6.3 on, so that 1 - p is 0",
)
def bfloat16_autocast() -> Training:
    model = mlp(3, 8, 1)
    with torch.no_grad():
        model[2].bias.fill_(8)

    def loss(x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            p = torch.sigmoid(model(x))
            missed = torch.log(1 - p)  # origin
        return -(y * torch.log(p) + (1 - y) * missed).float().mean()

    return fit(model, loss, (torch.randn(6, 3), torch.zeros(6, 1)))


@planted(
    "forward",
    "aten.div.Tensor",
    "nan",
    "zero-over-zero",
    "the eps of 1e-8 is 0 in float16",
    module="normalize",
)
def epsilon_below_float16() -> Training:
    class Normalize(nn.Module):
        def forward(self, x):
            return x / (x.norm(dim=-1, keepdim=True) + 1e-8)  # origin

    model = nn.Sequential()
    model.add_module("linear", nn.Linear(4, 4, bias=False).half())
    model.add_module("normalize", Normalize())
    x = torch.randn(3, 4).half()
    x[1] = 0
    return fit(model, lambda x: model(x).float().sum(), (x,))


@planted(
    "backward",
    "aten.mul.Tensor",
    "inf",
    "gradient-overflow-loss-scale",
    "a fixed loss scale of 32768 exceeds float16 in the backward pass",
    node="PowBackward0",
    also=("fp16-overflow",),
)
def fixed_loss_scale() -> Training:
    model = nn.Linear(4, 2).half()
    optimizer = SGD(model.parameters(), lr=0.01)

    def train(x, y):
        optimizer.zero_grad()
        errors = (model(x) - y).pow(2)  # origin
        loss = errors.float().sum()
        (loss * 2.0**15).backward()
        for parameter in model.parameters():
            parameter.grad /= 2.0**15
        optimizer.step()
        return loss

    return Training(model, [optimizer], train, [(torch.randn(4, 4).half() * 4, torch.randn(4, 2).half())])


@planted(
    "backward",
    "aten.mm.default",
    "inf",
    "gradient-overflow-loss-scale",
    "`optimizer.step` instead of `scaler.step`: the overflow of the scaled gradient is not skipped",
    node="AddmmBackward0",
    module="linear",
    also=("fp16-overflow", "matmul-overflow"),
)
def scaler_without_its_step() -> Training:
    class Linear(nn.Linear):
        def forward(self, x):
            return F.linear(x, self.weight, self.bias)  # origin

    model = nn.ModuleDict({"linear": Linear(4, 2)})
    optimizer = SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**15)

    def train(x):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model["linear"](x).float().sum()
        scaler.scale(loss).backward()
        optimizer.step()
        return loss

    return Training(model, [optimizer], train, [(torch.rand(4, 4) + 4,)])


@planted(
    "optimizer",
    "aten.addcdiv_.default",
    "inf",
    "f16-optimizer-underflow",
    "the square of a gradient of 1e-4 and eps 1e-8 are both 0 in float16",
    also=("optimizer-division",),
    parameter="weight",
)
def adam_in_float16() -> Training:
    model = Weights(torch.rand(4).half())
    optimizer = Adam(model.parameters(), lr=1e-3)

    def train(x):
        optimizer.zero_grad()
        loss = (model.weight * x).sum()
        loss.backward()
        optimizer.step()  # origin
        return loss

    return Training(model, [optimizer], train, [(torch.full((4,), 1e-4).half(),)])


@planted(
    "forward",
    "aten.sqrt.default",
    "nan",
    "sqrt-of-negative",
    "GradScaler skips each step, because the loss itself is NaN",
)
def scaler_skips_forever() -> Training:
    model = nn.Linear(3, 1)
    optimizer = SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def train(x):
        optimizer.zero_grad()
        loss = model(x).sqrt().mean()  # origin
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Training(model, [optimizer], train, [(torch.randn(16, 3),)])
