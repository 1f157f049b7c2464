"""The memory of tensors, and copies of the memory that a recording begins with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from nncdbg.engine.errors import RunError
from nncdbg.engine.text.lexemes import name_text
from nncdbg.torch.copy_memory import LEAST, CopyMemory

Key: TypeAlias = "tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype, int]"
"""The memory of a tensor: storage, offset, sizes, strides, dtype, and 1 for conjugated plus 2 for negated."""

SMALLER = "record with a smaller batch, or free memory before the step"
"""A hint for a recording without memory."""


class NotCopied(RunError):
    """There is no memory for a copy of an input."""

    def __init__(self, keys: Iterable[Key], size: int, reason: str) -> None:
        self.keys, self.size, self.reason = tuple(keys), size, reason
        super().__init__(self.named({}), hint=SMALLER)

    def named(self, labels: Mapping[Key, str]) -> str:
        """Return the message with the name of the input, if it has one."""
        names = [f"%{name_text(labels[key])}" for key in self.keys if key in labels]
        return f"{names[0] if names else 'an input'} of {self.size:,} bytes cannot be copied: {self.reason}"


@dataclass(slots=True)
class Input:
    """A storage that existed before it was used in the recording."""

    tensor: Any
    """A tensor over it, until its content is copied."""
    keys: dict[Key, None] = field(default_factory=dict)
    content: Any = None
    """A flat copy of its memory from before the first write, in the dtype of the first use."""
    start: int = 0
    """The position of the first copied element."""


def copy_content(kept: Input, memory: CopyMemory, *, whole: bool) -> None:
    """Copy the memory of an input to `memory`, if not `whole` only the part that was used.

    Raises NotCopied without memory for the copy.
    """
    tensor = kept.tensor
    storage = tensor.untyped_storage()
    if _is_all_of(tensor, storage):
        kept.content, kept.tensor = _copied(tensor.reshape(-1), kept, memory), None
        return
    flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)
    kept.start, stop = 0, flat.numel()
    if not whole:
        kept.start = min(_start_byte(key) for key in kept.keys) // tensor.element_size()
        stop = -(-max(_stop_byte(key) for key in kept.keys) // tensor.element_size())
    kept.content = _copied(flat[kept.start : stop].detach(), kept, memory)
    kept.tensor = None


def empty_content(kept: Input) -> Any:
    """Return the content of memory that nothing has written to: zeros, as any content is right."""
    tensor = kept.tensor
    return torch.zeros(tensor.untyped_storage().nbytes() // tensor.element_size(), dtype=tensor.dtype)


def tensor_at(key: Key, tensor: Any) -> Any:
    """Return a tensor with the layout of `key` over the storage of `tensor`."""
    _, offset, size, stride, dtype, _ = key
    made = torch.empty(0, dtype=dtype, device=tensor.device)
    return made.set_(tensor.untyped_storage(), offset, size, stride)


def copied_result(tensor: Any) -> Any:
    """Return a copy of a result, on its device; None without memory for it."""
    try:
        return tensor.detach().clone()
    except (MemoryError, RuntimeError):  # The allocators of torch raise RuntimeError.
        return None


def _copied(part: Any, kept: Input, memory: CopyMemory) -> Any:
    """Return a copy of a part of an input on the CPU.  Raises NotCopied without memory for it."""
    try:
        if part.nbytes < LEAST or not part.is_contiguous():
            return part.clone().cpu()
        return memory.take(part.nbytes).view(part.dtype).view(part.shape).copy_(part)
    except (MemoryError, OSError, RuntimeError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        reason = (said or "").partition("\n")[0].rpartition("err == 0. ")[2] or "out of memory"
        raise NotCopied(kept.keys, part.nbytes, reason) from None


def _is_all_of(tensor: Any, storage: Any) -> bool:
    """Return whether the elements of a CPU tensor are the whole memory, in order."""
    return bool(
        tensor.is_cpu
        and tensor.nbytes == storage.nbytes()
        and tensor.is_contiguous()
        and not (tensor.is_conj() or tensor.is_neg())
    )


def _start_byte(key: Key) -> int:
    return int(key[1] * key[4].itemsize)


def _stop_byte(key: Key) -> int:
    _, offset, size, stride, dtype, _ = key
    if 0 in size:
        return int(offset * dtype.itemsize)
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    return int((last + 1) * dtype.itemsize)
