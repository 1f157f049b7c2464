"""The memory of tensors, for the compiled statistics."""

from __future__ import annotations

from typing import Any

import torch

from nncdbg.engine.ops.aten.internals import storage_address

_STRIDED = torch.strided


def host_memory(value: Any) -> tuple[int, int, int] | None:
    """Return address, number of elements and storage of a tensor; None if it is not in host memory.

    The address is 0 for a tensor with gaps, for one that repeats elements and for one whose numbers are not
    those in memory.  The elements are in any order: statistics do not depend on it.
    """
    if not value.is_cpu or value.layout is not _STRIDED:
        return None
    direct = not (value.is_neg() or value.is_conj()) and (value.is_contiguous() or _is_dense(value))
    return value.data_ptr() if direct else 0, value.numel(), storage_address(value)


def _is_dense(value: Any) -> bool:
    """Return whether a tensor is a permutation of a contiguous one."""
    expected = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
