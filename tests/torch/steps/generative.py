"""Generative models, distributions and random numbers of each kind."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical, Normal, kl_divergence

from tests.torch.steps.training import Training, step, steps_of, trained


def adversaries() -> tuple[nn.Module, nn.Module]:
    """Return a generator, f32[n,4] to f32[n,8], and a discriminator, f32[n,8] to f32[n,1]."""
    generator = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8), nn.Tanh())
    discriminator = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    return generator, discriminator


@step()
def gan() -> Training:
    """Two optimizers, three backward passes."""
    generator, discriminator = adversaries()
    of_generator = torch.optim.Adam(generator.parameters(), 2e-3, betas=(0.5, 0.999))
    of_discriminator = torch.optim.Adam(discriminator.parameters(), 2e-3, betas=(0.5, 0.999))
    real = torch.randn(6, 8).clamp(-1, 1)

    def run() -> torch.Tensor:
        of_discriminator.zero_grad()
        judged = discriminator(real)
        F.binary_cross_entropy_with_logits(judged, torch.ones_like(judged)).backward()
        fake = generator(torch.randn(6, 4))
        judged = discriminator(fake.detach())
        F.binary_cross_entropy_with_logits(judged, torch.zeros_like(judged)).backward()
        of_discriminator.step()
        of_generator.zero_grad()
        judged = discriminator(fake)
        loss = F.binary_cross_entropy_with_logits(judged, torch.ones_like(judged))
        loss.backward()
        of_generator.step()
        return loss

    return Training([generator, discriminator], [of_generator, of_discriminator], run)


@step()
def wgan_gradient_penalty() -> Training:
    """Two updates of the critic with double backward, then one of the generator."""
    generator, critic = adversaries()
    of_generator = torch.optim.RMSprop(generator.parameters(), 1e-3)
    of_critic = torch.optim.RMSprop(critic.parameters(), 1e-3)
    real = torch.randn(6, 8)

    def run() -> torch.Tensor:
        for _ in range(2):
            fake = generator(torch.randn(6, 4)).detach()
            mixed = torch.lerp(real, fake, torch.rand(6, 1)).requires_grad_()
            (gradient,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
            penalty = (gradient.norm(2, dim=1) - 1).pow(2).mean()
            of_critic.zero_grad()
            (critic(fake).mean() - critic(real).mean() + 10 * penalty).backward()
            of_critic.step()
        of_generator.zero_grad()
        loss = -critic(generator(torch.randn(6, 4))).mean()
        loss.backward()
        of_generator.step()
        return loss

    return Training([generator, critic], [of_generator, of_critic], run)


@step()
def vae() -> Training:
    encoder, decoder = nn.Linear(8, 6), nn.Linear(3, 8)
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    x = torch.rand(5, 8)

    def run() -> torch.Tensor:
        mean, log_variance = encoder(x).chunk(2, dim=-1)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        rebuilt = torch.sigmoid(decoder(z))
        divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum()
        loss = F.binary_cross_entropy(rebuilt, x, reduction="sum") + divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return Training([model], [optimizer], run)


@step()
def normal_rsample_and_divergence() -> Training:
    model = nn.Linear(4, 6)
    x = torch.randn(5, 4)

    def loss_of() -> torch.Tensor:
        mean, raw = model(x).chunk(2, dim=-1)
        posterior = Normal(mean, F.softplus(raw) + 1e-3)
        sample = posterior.rsample()
        prior = Normal(torch.zeros_like(mean), torch.ones_like(mean))
        return kl_divergence(posterior, prior).mean() - Normal(sample, 1.0).log_prob(x[:, :3]).mean()

    return trained(model, torch.optim.Adam(model.parameters()), loss_of)


@step()
def policy_gradient_categorical() -> Training:
    """REINFORCE with a value baseline: actions are sampled, and the log probability is differentiated."""
    policy, value = nn.Linear(4, 3), nn.Linear(4, 1)
    model = nn.ModuleDict({"policy": policy, "value": value})
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    states = torch.randn(6, 4)
    kept = {"average": torch.zeros(())}

    def run() -> torch.Tensor:
        distribution = Categorical(logits=policy(states))
        action = distribution.sample()
        reward = (action == states.abs().argmax(1) % 3).float()
        kept["average"] = 0.9 * kept["average"] + 0.1 * reward.mean()
        baseline = value(states).squeeze(1)
        advantage = (reward - baseline).detach()
        loss = -(distribution.log_prob(action) * advantage).mean() - 0.01 * distribution.entropy().mean()
        loss = loss + F.mse_loss(baseline, reward)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return Training([model], [optimizer], run, kept)


class Diffusion(nn.Module):
    """A denoiser of f32[n,8] with a time embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Embedding(10, 8)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8))

    def forward(self, x: Any, time: Any) -> Any:
        return self.body(x + self.time(time))


@step()
def diffusion_noise_prediction() -> Training:
    model = Diffusion()
    optimizer = torch.optim.AdamW(model.parameters())
    signal = torch.linspace(0.99, 0.1, 10).cumprod(0)
    clean = torch.randn(6, 8)

    def run() -> torch.Tensor:
        time = torch.randint(0, 10, (len(clean),))
        noise = torch.randn_like(clean)
        kept = signal[time].unsqueeze(1)
        noisy = kept.sqrt() * clean + (1 - kept).sqrt() * noise
        loss = F.mse_loss(model(noisy, time), noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    return Training([model], [optimizer], run)


@step()
def dropout_of_each_kind() -> Training:
    model = nn.Sequential(
        nn.Dropout2d(0.3),
        nn.Conv2d(2, 4, 3),
        nn.Dropout(0.5),
        nn.AlphaDropout(0.2),
        nn.Flatten(),
        nn.Linear(64, 3),
    )
    x = torch.randn(4, 2, 6, 6)

    def loss_of() -> torch.Tensor:
        h = F.feature_alpha_dropout(model(x)[:, :, None], 0.2, training=True)
        return F.dropout(h, 0.1, inplace=True).square().mean() + F.rrelu(h, training=True).mean()

    return trained(model, torch.optim.SGD(model.parameters(), 0.1), loss_of)


@step()
def random_numbers_of_each_kind() -> Training:
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(5, 6)

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        noisy = x + 0.1 * torch.randn_like(x) + torch.rand(5, 6) + torch.empty_like(x).uniform_(-0.1, 0.1)
        noisy *= torch.empty_like(x).bernoulli_(0.8)
        logits = model(noisy[torch.randperm(5)])
        chosen = torch.multinomial(logits.softmax(-1), 2)
        counts = torch.poisson(logits.detach().exp().clamp(max=4))
        scale = torch.empty(4).normal_(1.0, 0.1) + torch.empty(4).exponential_(2.0)
        loss = (logits * scale - counts).square().mean() - logits.log_softmax(-1).gather(1, chosen).mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.weight.add_(torch.randn_like(model.weight), alpha=1e-3)
        return loss

    return Training([model], [optimizer], run)


@step()
def explicit_generator() -> Training:
    model = nn.Linear(6, 4)
    generator = torch.Generator().manual_seed(7)

    def loss_of() -> torch.Tensor:
        x = torch.randn(5, 6, generator=generator)
        keep = torch.rand(5, 4, generator=generator) < 0.7
        chosen = torch.multinomial(torch.ones(4), 1, generator=generator)
        return (model(x) * keep)[:, chosen].square().sum() + torch.bernoulli(
            x.sigmoid(), generator=generator
        ).sum()

    return trained(model, torch.optim.Adam(model.parameters()), loss_of)


@step()
def gumbel_softmax_straight_through() -> Training:
    model = nn.Linear(6, 4)
    x, codes = torch.randn(5, 6), torch.randn(4, 6)
    return trained(
        model,
        torch.optim.Adam(model.parameters()),
        lambda: F.mse_loss(F.gumbel_softmax(model(x), tau=0.7, hard=True) @ codes, x),
    )


STEPS = steps_of(globals())
