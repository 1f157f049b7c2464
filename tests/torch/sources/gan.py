"""Two models, two optimizers."""

import torch
from torch import nn


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, z):
        return torch.tanh(self.net(z))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 8)
        self.b = nn.Linear(8, 1)

    def forward(self, x):
        h = nn.functional.leaky_relu(self.a(x), 0.2)
        return self.b(h).squeeze(-1)


def setup():
    torch.manual_seed(0)
    g, d = Generator(), Critic()
    g_opt = torch.optim.Adam(g.parameters(), 1e-3)
    d_opt = torch.optim.Adam(d.parameters(), 1e-3)
    return {"g": g, "d": d, "g_opt": g_opt, "d_opt": d_opt, "real": torch.randn(4, 3)}


def step(s):
    bce = nn.functional.binary_cross_entropy_with_logits
    real = s["real"]
    ones, zeros = torch.ones(4), torch.zeros(4)
    z = torch.randn(4, 2)
    fake = s["g"](z)
    d_loss = bce(s["d"](real), ones) + bce(s["d"](fake.detach()), zeros)
    s["d_opt"].zero_grad()
    d_loss.backward()
    s["d_opt"].step()
    g_loss = bce(s["d"](fake), ones)
    s["g_opt"].zero_grad()
    g_loss.backward()
    s["g_opt"].step()
    return d_loss, g_loss
