"""A Lightning module under its Trainer."""

import lightning
import torch
from torch import nn


class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        y_hat = self.net(x)
        loss = nn.functional.mse_loss(y_hat, y)
        self.latest = loss.detach()
        return loss

    def on_before_optimizer_step(self, optimizer):
        total = torch.zeros(())
        for p in self.parameters():
            total = total + p.grad.norm()
        self.norm = total

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def setup():
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(4, 4), torch.randn(4, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", barebones=True)
    return Lit(), trainer, loader


def step(state):
    model, trainer, loader = state
    trainer.fit(model, loader)
    return model.norm + model.latest
