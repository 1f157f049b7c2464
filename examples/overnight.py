"""Train a classifier overnight.  The loss is NaN at step 380: find the cause, fix it, continue from there.

python examples/overnight.py                                    # writes run.db until the NaN
nncdbg log run.db                                               # the losses, and the step of the NaN
nncdbg run.db@nan                                               # open that step in the debugger
python examples/overnight.py --resume run.db@380 --epsilon 1e-6 # continue with the fix, as a fork
nncdbg diff run.db#1 run.db#2                                   # compare both runs
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nncdbg.torch

STEPS = 600
STUCK = 4718  # The sensor gave the same number all the time: this signal has no deviation.


class Classifier(nn.Module):
    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 3))

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        centered = signals - signals.mean(dim=1, keepdim=True)
        deviation = centered.square().mean(dim=1, keepdim=True).sqrt()
        return self.layers(centered / (deviation + self.epsilon))


def signals() -> TensorDataset:
    """Return sine waves with noise, of three frequencies."""
    labels = torch.randint(3, (STEPS * 16,))
    time = torch.linspace(0, 6.28, 32)
    waves = torch.sin((labels[:, None] + 1) * time + 6.28 * torch.rand(len(labels), 1))
    waves += 0.3 * torch.randn_like(waves)
    waves[STUCK] = 0.25
    return TensorDataset(waves, labels)


parser = argparse.ArgumentParser()
parser.add_argument("--resume", help="go on from this step of a journal, such as run.db@380")
parser.add_argument("--epsilon", type=float, default=0.0)
options = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
model = Classifier(options.epsilon)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
loader = nncdbg.torch.track_loader(DataLoader(signals(), batch_size=16, shuffle=True))
resumed = nncdbg.torch.resume(model, optimizer, options.resume, loader=loader) if options.resume else None

with nncdbg.torch.flight_recorder(
    model, optimizer, "run.db", loader=loader, checkpoint_every=100, resumed=resumed
):
    for batch, labels in loader:
        scores = model(batch)
        loss = nn.functional.cross_entropy(scores, labels)
        nncdbg.torch.track("accuracy", (scores.argmax(dim=1) == labels).float().mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.isnan():
            raise SystemExit("the loss is NaN")
