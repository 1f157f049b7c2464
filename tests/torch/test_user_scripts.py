"""Scripts of users under `nncdbg watch` and `nncdbg record`: what the commands print and save."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

Command = Callable[..., tuple[int, str, str]]

TWO_MODELS = """
import torch
from torch import nn
torch.manual_seed(0)
generator, critic = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 1), nn.Sigmoid())
of_generator = torch.optim.SGD(generator.parameters(), lr=0.1)
of_critic = torch.optim.SGD(critic.parameters(), lr=0.1)
for step in range(3):
    made = generator(torch.ones(3, 2))
    of_critic.zero_grad()
    score = critic(made.detach())
    (1 - score * int(step < 1) - int(step >= 1)).log().mean().backward()
    of_critic.step()
    of_generator.zero_grad()
    critic(made).log().mean().backward()
    of_generator.step()
"""


def test_parameters_of_two_models_have_the_names_of_their_variables(command: Command) -> None:
    Path("train.py").write_text(TWO_MODELS)
    code, out, err = command("watch", "train.py")
    assert code == 1
    assert "critic.0.weight.grad (2 NaN of 2)" in out + err


CHECKPOINTED = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)
class Root(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Linear(3, 3)
    def forward(self, x):
        return self.scale(x) * (x[:, :1] * 0).sqrt()
model = nn.Sequential(Root(), nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.ones(2, 3, requires_grad=True)
hidden = checkpoint(model[0], inputs, use_reentrant=True)
model[1](checkpoint(model[0], hidden + 1, use_reentrant=True)).sum().backward()
optimizer.step()
"""


def test_reentrant_checkpointing_has_the_lines_and_modules_of_the_second_forward(command: Command) -> None:
    Path("train.py").write_text(CHECKPOINTED)
    code, _, err = command("record", "train.py")
    assert code == 0, err
    code, out, _ = command("watch", "step1")
    assert code == 1
    origin = out.partition("2. ")[0]
    assert "aten.div.Tensor produced it" in origin
    assert 'from train.py:11, module "0", node "SqrtBackward0"' in origin
    assert "in @0.backward" in origin
