"""Tensors as NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from nncdbg.engine.errors import NotComputed, RunError
from nncdbg.engine.ops.aten.signatures import FROM_HOST, HOST_VIEWS


def host_array(value: Any) -> Any:
    """Return a tensor as a NumPy array, without a copy if it is on the CPU; other values are unchanged.

    Raises NotComputed for a tensor on the device meta, which has no elements.
    """
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_meta:
        raise NotComputed(
            "a tensor on the device meta has no elements", hint="create it on cpu or another device"
        )
    if value.layout != torch.strided:
        return value.numpy(force=True)  # Raises TypeError.
    viewed = HOST_VIEWS.get(value.dtype)
    plain = value.detach().resolve_conj().resolve_neg().cpu()
    # After `Tensor.numpy`, torch refuses to resize the memory, as FSDP does.
    return np.from_dlpack(plain) if viewed is None else np.from_dlpack(plain.view(viewed[0])).view(viewed[1])


def as_tensor(array: Any) -> torch.Tensor:
    """Return a NumPy array as a tensor on the CPU, in the same memory if torch can write there.

    Raises RunError for a dtype that torch does not have.
    """
    if not array.flags.writeable or array.dtype.byteorder not in "=|" or min(array.strides, default=0) < 0:
        array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    viewed = FROM_HOST.get(array.dtype)
    try:
        if viewed is not None:
            return torch.from_numpy(array.view(viewed[0])).view(viewed[1])
        return torch.from_numpy(array)
    except TypeError:
        raise RunError(f"torch has no tensors of {array.dtype}", hint="use --backend numpy") from None


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
