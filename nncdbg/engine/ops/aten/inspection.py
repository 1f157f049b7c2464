"""The memory of tensors, for the compiled statistics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

_STRIDED = torch.strided
_TENSOR = torch.Tensor


def host_memory(value: Any) -> tuple[int, int] | None:
    """Return address and number of elements of a strided tensor in host memory; None for other values.

    The address is 0 for a tensor with gaps, for one that repeats elements and for one whose numbers are not
    those in memory.  The elements are in any order: statistics do not depend on it.
    """
    if not isinstance(value, _TENSOR) or not value.is_cpu or value.layout is not _STRIDED:
        return None
    direct = (value.is_contiguous() or is_dense(value)) and not value.is_neg() and not value.is_conj()
    return value.data_ptr() if direct else 0, value.numel()


def tensor_storage(value: Any) -> tuple[int, int] | None:
    """Return address and size in bytes of the storage of a strided tensor; None for other values.

    A lazy zero tensor has no memory.
    """
    if not isinstance(value, _TENSOR) or value.layout is not _STRIDED or value._is_zerotensor():
        return None
    storage = value.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def device_name(value: Any) -> str | None:
    """Return the device of a tensor or array, such as ``cuda:0``; None for other values."""
    if isinstance(value, _TENSOR):
        return str(value.device)
    return "cpu" if isinstance(value, (np.ndarray, np.generic)) else None


def device_bytes(values: Iterable[Any]) -> int | None:
    """Return the size in bytes of the smallest CUDA device with one of the values; None without one."""
    devices = {value.device for value in values if isinstance(value, _TENSOR) and value.is_cuda}
    return min((torch.cuda.get_device_properties(each).total_memory for each in devices), default=None)


def drain_devices() -> int:
    """Free the memory of CUDA devices that torch keeps for reuse; return its bytes."""
    if not torch.cuda.is_initialized():
        return 0
    devices = range(torch.cuda.device_count())
    before = sum(map(torch.cuda.memory_reserved, devices))
    torch.cuda.empty_cache()
    return int(before - sum(map(torch.cuda.memory_reserved, devices)))


def is_dense(value: Any) -> bool:
    """Return whether a tensor is a permutation of a contiguous one."""
    expected = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
