"""A script without functions: all names are global."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.randn(8, 2)
target = (x[:, :1] * x[:, 1:]).sign()
unused = torch.ones(3)
losses = []
for epoch in range(2):
    prediction = model(x)
    margin = prediction * target
    loss = nn.functional.softplus(-margin).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    best = loss if epoch == 0 else torch.minimum(best, loss)
accuracy = (model(x).sign() == target).float().mean()
for p in model.parameters(): p.data.mul_(0.99)
del margin
result = best + accuracy
