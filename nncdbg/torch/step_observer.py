"""What a guard calls at the beginning and at the end of each step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class StepObserver:
    """Called by a guard, outside of its tape; each method does nothing unless it is overridden."""

    def step_begins(self) -> None:
        """Called before a forward pass: the first one after an update begins a step."""

    def losses(self, losses: Iterable[Any]) -> None:
        """Called with the tensors from which a backward pass started."""

    def update_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """Called before an update, when gradients and losses were checked."""

    def update_ended(self, optimizer: torch.optim.Optimizer) -> None:
        """Called after an update, and after one that a gradient scaler left out."""
