"""Gradient accumulation over micro batches, clipping and a schedule."""

import torch
from torch import nn


def setup():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    data = torch.utils.data.TensorDataset(torch.randn(6, 5), torch.randn(6, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=3)
    return model, optimizer, schedule, loader


def step(state):
    model, optimizer, schedule, loader = state
    model.train()
    optimizer.zero_grad()
    total = 0.0
    for i, (x, y) in enumerate(loader):
        prediction = model(x)
        loss = nn.functional.mse_loss(prediction, y) / len(loader)
        loss.backward()
        total += loss.item()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    schedule.step()
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            error = (model(x) - y).abs().mean()
    return norm + error + total
