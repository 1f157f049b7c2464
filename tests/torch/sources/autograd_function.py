"""A custom autograd function, hooks on tensors and modules."""

import torch
from torch import nn


class Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, limit):
        ctx.save_for_backward(x)
        ctx.limit = limit
        y = x.clamp(-limit, limit)
        return y

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        inside = x.abs() <= ctx.limit
        grad = grad * inside
        return grad, None


def setup():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    return model, torch.optim.RMSprop(model.parameters(), 0.01), torch.randn(3, 4)


def step(state):
    model, optimizer, x = state
    seen = []

    def note(module, args, output):
        flat = output.detach().flatten()
        seen.append(flat.norm())
        return output * 1.5

    def scale(grad):
        half = grad * 0.5
        return half + 0.01

    handle = model[1].register_forward_hook(note)
    weight = model[0].weight
    grads = weight.register_hook(scale)
    h = model(x)
    h.register_hook(lambda g: g.clamp(-1, 1))
    y = Clip.apply(h, 0.3)
    loss = y.sum() + Clip.apply(x, 1.0).mean()
    optimizer.zero_grad()
    loss.backward()
    handle.remove()
    grads.remove()
    optimizer.step()
    return loss, seen[0]
