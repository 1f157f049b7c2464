"""The states of PyTorch's random generators."""

from __future__ import annotations

from typing import Any

import torch


def generator_state(device: torch.device) -> Any:
    """Return the state of a device's generator, a tensor of bytes."""
    return (
        torch.get_rng_state()
        if device.type == "cpu"
        else torch.get_device_module(device).get_rng_state(device)
    )


def set_generator_state(state: Any, device: torch.device) -> None:
    """Set the state of a device's generator."""
    if device.type == "cpu":
        torch.set_rng_state(state.contiguous())
    else:
        torch.get_device_module(device).set_rng_state(state, device)
