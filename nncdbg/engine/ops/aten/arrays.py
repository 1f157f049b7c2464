"""Tensors as NumPy arrays, their memory, and the functions of Python's numbers in exported programs."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from nncdbg.engine.ops.aten.signatures import FROM_HOST, HOST_VIEWS
from nncdbg.errors import GraphError, NotComputed, RunError


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


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(operator, name)
        for name in (
            *("add", "sub", "mul", "floordiv", "truediv", "mod", "pow", "neg", "pos", "abs"),
            *("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "xor", "not_"),
        )
    },
    **{
        name: getattr(torch, name)
        for name in ("sym_max", "sym_min", "sym_not", "sym_ite", "sym_float", "sym_int")
    },
    **{name: getattr(math, name) for name in ("ceil", "floor", "trunc", "sqrt")},
    "round": round,
}
"""Name in program text to the function."""

_NAMES = {function: name for name, function in _FUNCTIONS.items()}


def function_name(target: Any) -> str | None:
    """Return the name of a function of numbers in program text; None for another object."""
    return _NAMES.get(target)


def number_function(name: Any) -> Callable[..., Any]:
    """Return the function with this name.  Raises GraphError for an unknown one."""
    found = _FUNCTIONS.get(name)
    if found is None:
        known = ", ".join(_FUNCTIONS)
        raise GraphError(
            f"{name!r} is not a function of numbers", hint=f"use one of {known}", attribute="function"
        )
    return found
