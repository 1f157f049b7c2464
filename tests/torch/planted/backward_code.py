"""NaN and Inf in the user's own code that the backward pass calls, and in gradients of gradients."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Adam

from tests.torch.planted.cases import Training, Weights, fit, mlp, planted


@planted(
    "backward",
    "aten.div.Tensor",
    "nan",
    "custom-function-backward",
    "the backward of a norm divides 0 by the norm 0",
    node="NormBackward",
    module="norm",
    also=("zero-over-zero", "norm-at-zero-backward"),
)
def custom_norm() -> Training:
    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            norm = (x * x).sum(-1, keepdim=True).sqrt()
            context.save_for_backward(x, norm)
            return norm

        @staticmethod
        def backward(context, gradient):
            x, norm = context.saved_tensors
            return gradient * (x / norm)  # origin

    class Layer(nn.Module):
        def forward(self, x):
            return Norm.apply(x)

    model = nn.ModuleDict({"first": nn.Linear(3, 4, bias=False), "norm": Layer()})
    x = torch.randn(4, 3)
    x[3] = 0
    return fit(model, lambda x: model["norm"](model["first"](x)).mean(), (x,))


@planted(
    "backward",
    "aten.exp.default",
    "inf",
    "custom-function-backward",
    "the backward of softplus computes exp(x) without the limit that the forward has",
    node="SoftplusBackward",
    also=("exp-overflow",),
)
def custom_softplus() -> Training:
    class Softplus(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.save_for_backward(x)
            return F.softplus(x)

        @staticmethod
        def backward(context, gradient):
            (x,) = context.saved_tensors
            grown = x.exp()  # origin
            return gradient * grown / (1 + grown)

    model = mlp(3, 8, 1)
    return fit(model, lambda x: Softplus.apply(model(x) + 100).mean(), (torch.randn(6, 3),))


@planted(
    "backward",
    "aten.div.Tensor",
    "nan",
    "hook",
    "the hook of a dead layer's weight divides its gradient by its norm, 0 / 0",
    node="torch::autograd::AccumulateGrad",
    also=("zero-over-zero",),
)
def normalizing_hook_of_parameter() -> Training:
    model = mlp(3, 4, 1)
    with torch.no_grad():
        model[0].bias.fill_(-100)

    def normalized(gradient):
        return gradient / gradient.norm()  # origin

    model[0].weight.register_hook(normalized)
    return fit(model, lambda x: (model(x) - 1).pow(2).mean(), (torch.randn(6, 3),))


@planted(
    "backward",
    "aten.div.Tensor",
    "nan",
    "hook",
    "a full backward hook scales by the largest gradient, which is 0 in a masked batch",
    node="BackwardHookFunctionBackward",
    module="head",
    first_bad_step=1,
    also=("zero-over-zero",),
)
def scaling_hook_of_module() -> Training:
    model = nn.ModuleDict({"body": nn.Linear(3, 4), "head": nn.Linear(4, 1)})

    def scaled(module, inputs, outputs):
        return (inputs[0] / inputs[0].abs().max(),)  # origin

    model["head"].register_full_backward_hook(scaled)
    batches = [(torch.randn(6, 3), weight) for weight in (1.0, 0.0)]
    return fit(model, lambda x, weight: weight * model["head"](model["body"](x)).pow(2).mean(), *batches)


@planted(
    "backward",
    "aten.div.Tensor",
    "inf",
    "sqrt-at-zero-backward",
    "the gradient of a dead critic is 0, and the penalty takes its norm by hand",
    node="SqrtBackward0",
    also=("norm-at-zero-backward",),
)
def gradient_penalty_of_dead_critic() -> Training:
    model = nn.ModuleDict({"generator": mlp(2, 8, 2), "critic": mlp(2, 8, 1)})
    optimizers = [Adam(part.parameters(), lr=1e-3) for part in model.values()]
    with torch.no_grad():
        model["critic"][0].bias.fill_(-100)

    def train(real, noise):
        optimizers[1].zero_grad()
        mixed = (real + model["generator"](noise).detach()) / 2
        mixed.requires_grad_()
        (slope,) = torch.autograd.grad(model["critic"](mixed).sum(), mixed, create_graph=True)
        norm = slope.pow(2).sum(-1).sqrt()  # origin
        loss = model["critic"](mixed).mean() + (norm - 1).pow(2).mean()
        loss.backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        (-model["critic"](model["generator"](noise)).mean()).backward()
        optimizers[0].step()
        return loss.detach()

    return Training(model, optimizers, train, [(torch.randn(6, 2), torch.randn(6, 2))])


@planted(
    "backward",
    "aten.reciprocal.default",
    "inf",
    "hook",
    "a hook scales a gradient to norm 1, and its norm is 0",
    node="MulBackward0",
    also=("division-by-zero",),
)
def normalizing_hook_of_hidden_layer() -> Training:
    model = Weights(torch.zeros(4))
    x = torch.randn(4)

    def loss(x):
        scaled = model.weight * x
        scaled.register_hook(lambda gradient: (1 / gradient.norm()) * gradient)  # origin
        return scaled.pow(2).sum()

    return fit(model, loss, (x,))
