"""Tensors as NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from nncdbg.engine.ops.aten.signatures import HOST_VIEWS


def host_array(value: Any) -> Any:
    """Return a tensor as a NumPy array, without a copy if it is on the CPU; other values are unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    viewed = HOST_VIEWS.get(value.dtype)
    if viewed is None:
        return value.numpy(force=True)
    same_size, dtype = viewed
    plain = value.detach().resolve_conj().resolve_neg().cpu()
    return plain.view(same_size).numpy(force=True).view(dtype)


def host_arrays(values: Sequence[Any], to_host: Callable[[Any], Any]) -> list[Any]:
    """Return values as `to_host` does; the tensors of each device are copied with one transfer."""
    found = list(values)
    for device in {each.device for each in values if isinstance(each, torch.Tensor) and not each.is_cpu}:
        moving = [
            at for at, each in enumerate(values) if isinstance(each, torch.Tensor) and each.device == device
        ]
        plain = [values[at].detach().resolve_conj().resolve_neg().contiguous() for at in moving]
        packed = torch.cat([each.reshape(-1).view(torch.uint8) for each in plain]).cpu()
        offset = 0
        for at, each in zip(moving, plain, strict=True):
            size = each.numel() * each.element_size()
            # A copy, because the bytes may begin between two elements.
            found[at] = packed[offset : offset + size].clone().view(each.dtype).reshape(each.shape)
            offset += size
    return [to_host(each) for each in found]
