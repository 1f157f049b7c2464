"""A convolutional autoencoder with batch norm, dropout and a sampled code."""

import torch
import torch.nn.functional as F
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.mu = nn.Linear(64, 2)
        self.logvar = nn.Linear(64, 2)

    def forward(self, x):
        h = F.relu(self.bn(self.conv(x)), inplace=True)
        h = h.flatten(1)
        return self.mu(h), self.logvar(h)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.decoder = nn.Sequential(nn.Linear(2, 64), nn.ReLU(inplace=True), nn.Unflatten(1, (4, 4, 4)))
        self.out = nn.ConvTranspose2d(4, 1, 2, stride=2)

    def sample(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def forward(self, x):
        mu, logvar = self.encoder(x)
        z = self.sample(mu, logvar)
        y = self.out(F.dropout(self.decoder(z), 0.1, self.training))
        return torch.sigmoid(y), mu, logvar


def setup():
    torch.manual_seed(0)
    model = VAE()
    return model, torch.optim.Adam(model.parameters(), 1e-3), torch.rand(3, 1, 8, 8)


def step(state):
    model, optimizer, x = state
    y, mu, logvar = model(x)
    bce = F.binary_cross_entropy(y, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    loss = bce + kld
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
