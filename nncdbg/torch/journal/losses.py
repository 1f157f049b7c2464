"""The loss of a training step, from the tensors that its backward passes start from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def total_loss(losses: list[Any], scaler: Any) -> Any:
    """Return the sum of the losses of the backward passes of a step, without the factor of its scaler."""
    total = sum(each.double() if each.device.type != "mps" else each.float() for each in losses)
    return total if scaler is None or not scaler.is_enabled() else total / scaler.get_scale()


def scalar_losses(tensors: Iterable[Any]) -> list[Any]:
    """Return those of the tensors that are losses: real, with one element."""
    return [each.detach() for each in tensors if each.numel() == 1 and not each.is_complex()]
