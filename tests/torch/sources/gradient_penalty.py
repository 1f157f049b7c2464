"""Gradients of gradients, torch.func and a Jacobian."""

import torch
from torch import nn


def setup():
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(3, 6), nn.Softplus(), nn.Linear(6, 1))
    return critic, torch.optim.SGD(critic.parameters(), 0.1), torch.randn(4, 3), torch.randn(4, 3)


def penalty(critic, real, fake):
    alpha = torch.rand(real.size(0), 1)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    score = critic(mixed)
    (grad,) = torch.autograd.grad(score.sum(), mixed, create_graph=True)
    norm = grad.norm(2, dim=1)
    return ((norm - 1) ** 2).mean()


def energy(x):
    y = x.sin()
    return (y * x).sum()


def step(state):
    critic, optimizer, real, fake = state
    gp = penalty(critic, real, fake)
    loss = critic(fake).mean() - critic(real).mean() + 10 * gp
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    g = torch.func.grad(energy)(real)
    rows = torch.vmap(energy)(real)
    x = real[0].clone().requires_grad_()
    e = energy(x)
    (first,) = torch.autograd.grad(e, x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    return loss, g.sum() + rows.sum() + second.sum()
