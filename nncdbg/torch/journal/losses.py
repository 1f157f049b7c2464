"""The loss of a training step, from the tensors that its backward passes start from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from nncdbg.engine.ops.aten.internals import is_wrapped


def total_loss(losses: list[Any], scaler: Any) -> Any:
    """Return the sum of the losses of the backward passes of a step, without the factor of its scaler.

    A number, or a tensor if a loss is one.
    """
    total = sum(_wide(each) if isinstance(each, torch.Tensor) else each for each in losses)
    return total if scaler is None or not scaler.is_enabled() else total / scaler.get_scale()


def scalar_losses(tensors: Iterable[Any]) -> list[Any]:
    """Return those of the tensors that are losses: real, with one element.

    A plain tensor on the CPU becomes a number.  Others remain tensors: reading one would wait for its device,
    or for other ranks.
    """
    return [
        each.item()
        if each.__class__ is torch.Tensor and each.is_cpu and not is_wrapped(each)
        else each.detach()
        for each in tensors
        if each.numel() == 1 and not each.is_complex()
    ]


def _wide(loss: Any) -> Any:
    return loss.double() if loss.device.type != "mps" else loss.float()
