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
    (1 - score * (step < 1) - (step >= 1)).log().mean().backward()
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
