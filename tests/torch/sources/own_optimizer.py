"""An optimizer of the user's own, with state by parameter, in its usual loops."""

import math

import torch
from torch import nn


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = p.grad
                state = self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                    state["step"] = 0
                exp_avg = state["exp_avg"]
                state["step"] += 1
                p.mul_(1 - group["lr"] * group["weight_decay"])
                update = exp_avg * beta1 + grad * (1 - beta1)
                p.add_(update.sign_(), alpha=-group["lr"])
                exp_avg.mul_(beta2).add_(grad, alpha=1 - beta2)
                p.data = p.data / math.sqrt(state["step"])


def setup():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.SiLU(), nn.Linear(4, 1))
    return model, Lion(model.parameters()), torch.randn(6, 3), torch.randn(6, 1)


def step(state):
    model, optimizer, x, y = state
    for _ in range(2):
        optimizer.zero_grad()
        loss = nn.functional.huber_loss(model(x), y)
        loss.backward()
        optimizer.step()
    return loss
