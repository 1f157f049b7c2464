"""Several optimizers: each update is a step."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import LBFGS, SGD, Adam, SparseAdam

from tests.torch.faults.cases import fault


@fault(step=3, op="log", value="inf", cause="log of zero")
def saturated_discriminator() -> None:
    generator = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3))
    discriminator = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1), nn.Sigmoid())
    g_optimizer = Adam(generator.parameters(), lr=1e-3)
    d_optimizer = Adam(discriminator.parameters(), lr=1e-3)
    for step in range(1, 4):
        if step == 2:
            nn.init.constant_(discriminator[2].bias, 100.0)
        fake = generator(torch.randn(4, 2))
        real = torch.randn(4, 3)
        d_loss = -torch.log(discriminator(real) + 1e-8).mean()
        d_loss = d_loss - torch.log(1 - discriminator(fake.detach())).mean()  # FAULT
        d_optimizer.zero_grad()
        d_loss.backward()
        d_optimizer.step()
        g_loss = discriminator(fake).mean()
        g_optimizer.zero_grad()
        g_loss.backward()
        g_optimizer.step()


@fault(step=4, op="log", value="inf", cause="log of zero")
def generator_without_signal() -> None:
    generator, discriminator = nn.Linear(2, 3), nn.Linear(3, 1)
    g_optimizer = SGD(generator.parameters(), lr=1e-3)
    d_optimizer = SGD(discriminator.parameters(), lr=1e-6)
    for step in range(1, 4):
        if step == 2:
            nn.init.constant_(discriminator.bias, -200.0)
        z = torch.randn(4, 2)
        d_loss = F.softplus(discriminator(generator(z).detach())).mean()
        d_loss = d_loss + F.softplus(-discriminator(torch.randn(4, 3))).mean()
        d_optimizer.zero_grad()
        d_loss.backward()
        d_optimizer.step()
        g_loss = -torch.log(torch.sigmoid(discriminator(generator(z)))).mean()  # FAULT
        g_optimizer.zero_grad()
        g_loss.backward()
        g_optimizer.step()


@fault(step=1, op="div", value="inf", cause="square root at zero in backward")
def gradient_penalty() -> None:
    generator = nn.Linear(2, 3)
    critic = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    nn.init.zeros_(critic[2].weight)
    c_optimizer = Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))
    g_optimizer = Adam(generator.parameters(), lr=1e-4, betas=(0.0, 0.9))
    for _ in range(2):
        real, fake = torch.randn(4, 3), generator(torch.randn(4, 2)).detach()
        mixed = (0.5 * real + 0.5 * fake).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        penalty = (torch.sqrt((slope**2).sum(1)) - 1).square().mean()  # FAULT
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
        c_optimizer.zero_grad()
        loss.backward()
        c_optimizer.step()
        g_optimizer.zero_grad()
        (-critic(generator(torch.randn(4, 2))).mean()).backward()
        g_optimizer.step()


@fault(step=4, op="log", value="inf", cause="log of zero")
def squashed_actor() -> None:
    actor, critic = nn.Linear(3, 1), nn.Linear(4, 1)
    actor_optimizer = Adam(actor.parameters(), lr=1e-3)
    critic_optimizer = Adam(critic.parameters(), lr=1e-3)
    for step in range(1, 4):
        state = torch.randn(5, 3)
        with torch.no_grad():
            target = torch.randn(5, 1)
            action = torch.tanh(actor(state))
        critic_loss = F.mse_loss(critic(torch.cat([state, action], 1)), target)
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        raw = actor(state) + (50.0 if step == 2 else 0.0)
        squashed = torch.tanh(raw)
        correction = torch.log(1 - squashed**2)  # FAULT
        actor_loss = (-correction - critic(torch.cat([state, squashed], 1))).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()


@fault(step=3, op="exp", value="inf", cause="overflow of the exponential")
def temperature_of_soft_actor() -> None:
    critic = nn.Linear(3, 1)
    log_alpha = torch.zeros(1, requires_grad=True)
    critic_optimizer = Adam(critic.parameters(), lr=1e-3)
    alpha_optimizer = SGD([log_alpha], lr=100.0)
    for _ in range(3):
        entropy = torch.rand(4, 1)
        alpha = log_alpha.exp().detach()  # FAULT
        loss = (critic(torch.randn(4, 3)) - alpha * entropy).square().mean()
        critic_optimizer.zero_grad()
        loss.backward()
        critic_optimizer.step()
        alpha_loss = -(log_alpha * 1.0).mean()
        alpha_optimizer.zero_grad()
        alpha_loss.backward()
        alpha_optimizer.step()


@fault(step=3, op="div", value="nan", cause="zero divided by zero")
def padding_of_user() -> None:
    users = nn.Embedding(6, 3, sparse=True, padding_idx=0)
    items = nn.Linear(4, 3)
    sparse = SparseAdam(users.parameters(), lr=1e-2)
    dense = Adam(items.parameters(), lr=1e-2)
    for ids in ([1, 2], [3, 0], [4, 5]):
        u, i = users(torch.tensor(ids)), items(torch.randn(2, 4))
        u = u / u.norm(dim=1, keepdim=True)  # FAULT
        loss = -(u * i).sum(1).sigmoid().mean()
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()


@fault(step=1, op="sqrt", value="nan", cause="square root of a negative number")
def line_search() -> None:
    weight = nn.Parameter(torch.tensor([1.0, 1.0]))
    optimizer = LBFGS([weight], lr=10.0, max_iter=5)

    def closure():
        optimizer.zero_grad()
        loss = torch.sqrt(weight - 0.5).sum()  # FAULT
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)


@fault(step=3, op="exp", value="inf", cause="overflow of the exponential")
def variational_autoencoder() -> None:
    encoder, decoder = nn.Linear(4, 4), nn.Linear(2, 4)
    nn.init.constant_(encoder.weight, 1.0)
    e_optimizer = Adam(encoder.parameters(), lr=1e-4)
    d_optimizer = Adam(decoder.parameters(), lr=1e-4)
    for step in range(1, 4):
        x = torch.rand(3, 4) * (1e3 if step == 2 else 0.1)
        mean, log_variance = encoder(x).chunk(2, -1)
        variance = log_variance.exp()  # FAULT
        z = mean + torch.randn_like(mean) * variance.sqrt()
        divergence = 0.5 * (variance + mean.square() - 1 - log_variance).sum(-1).mean()
        loss = F.mse_loss(decoder(z), x) + divergence
        e_optimizer.zero_grad()
        d_optimizer.zero_grad()
        loss.backward()
        e_optimizer.step()
        d_optimizer.step()
