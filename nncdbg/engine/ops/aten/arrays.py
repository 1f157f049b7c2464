"""Tensors as NumPy arrays."""

from __future__ import annotations

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
