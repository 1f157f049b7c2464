"""torch.utils.checkpoint in both forms."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x):
        h = self.up(x)
        h = h * torch.sigmoid(h)
        return x + self.down(h)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x):
        x = checkpoint(self.blocks[0], x, use_reentrant=True)
        for block in self.blocks[1:]:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def setup():
    torch.manual_seed(0)
    model = Net()
    return model, torch.optim.SGD(model.parameters(), 0.1), torch.randn(2, 4, requires_grad=True)


def step(state):
    model, optimizer, x = state
    optimizer.zero_grad()
    y = model(x)
    loss = y.square().mean()
    loss.backward()
    optimizer.step()
    return loss
