"""The memory of tensors, and copies of the memory that a recording begins with."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch

from nncdbg.engine.memory.region import huge_pages
from nncdbg.engine.ops.aten.arrays import host_array
from nncdbg.engine.values.checksum import checksum
from nncdbg.errors import RunError
from nncdbg.process.address_space import address_space_limit
from nncdbg.text.lexemes import name_text

# -- memory of copies ----------------------------------------------------------------------

# Memory that the system has just allocated costs about as much as the copy into it.


LEAST = 1 << 16
"""The bytes of a copy from which this memory is faster than that of torch."""

_BLOCK = 1 << 25
"""The bytes of a block, of which only pages that are written to take memory."""

_ALIGNMENT = 64

_MOST_SPARE = 1 << 30
"""The most bytes of unused blocks that are kept."""

_FREE = getattr(mmap, "MADV_FREE", None)
"""Lets the system take the pages of an unused block when it needs memory."""

_spare: dict[int, list[mmap.mmap]] = {}
"""Unused blocks by size."""


class CopyMemory:
    """Hands out memory from blocks; a block is free again when no tensor uses a part of it."""

    def __init__(self) -> None:
        self._block: Any = None
        self._used = 0

    def take(self, size: int) -> Any:
        """Return a uint8 tensor with a storage of `size` bytes, with any content.

        Raises OSError or ValueError if the system has no address space of this size.
        """
        if size >= _BLOCK:
            return _part(_block(size), 0, size)
        if self._block is None or self._used + size > _BLOCK:
            try:
                self._block, self._used = _block(_BLOCK), 0
            except OSError:
                # The address space is limited, and the rest is less than a block.
                return _part(_block(size), 0, size)
        start = self._used
        self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
        return _part(self._block, start, size)


def _part(block: Any, start: int, size: int) -> Any:
    """Return a tensor over a part of a block, which it keeps; its storage is only this part."""
    return torch.frombuffer(block, dtype=torch.uint8, count=size, offset=start)


def _block(size: int) -> Any:
    """Return an array of at least so many bytes, in whole pages."""
    size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    try:
        pages = _spare[size].pop()
    except (KeyError, IndexError):
        pages = huge_pages(size)
    array = np.frombuffer(pages, np.uint8)
    if _FREE is not None:
        weakref.finalize(array, _keep, pages, size).atexit = False
    return array


def _keep(pages: mmap.mmap, size: int) -> None:
    """Keep a block that became free, if there is room."""
    if address_space_limit() is not None:
        return  # The training may need the addresses (ulimit -v).
    if sum(each * len(blocks) for each, blocks in [*_spare.items()]) + size <= _MOST_SPARE:
        assert _FREE is not None
        pages.madvise(_FREE)
        _spare.setdefault(size, []).append(pages)


# -- inputs of a recording -----------------------------------------------------------------

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
    in_order = tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
    if tensor.is_cpu and tensor.nbytes == storage.nbytes() and in_order:
        kept.content, kept.tensor = _copied(tensor.reshape(-1), kept, memory), None
        return
    flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)
    kept.start, stop = 0, flat.numel()
    if not whole:
        starts, stops = zip(*map(extent_of, kept.keys), strict=True)
        kept.start, stop = min(starts) // tensor.element_size(), -(-max(stops) // tensor.element_size())
    kept.content = _copied(flat[kept.start : stop].detach(), kept, memory)
    kept.tensor = None


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


def extent_of(key: Key) -> tuple[int, int]:
    """Return the first byte of a tensor in its storage, and the byte after its last one."""
    _, offset, size, stride, dtype, _ = key
    last = -1 if 0 in size else sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    return int(offset * dtype.itemsize), int((offset + last + 1) * dtype.itemsize)


class SeenContents:
    """Checksums of the memory of tensors after each operator inside of an operator.

    An operator of another library may compute without operators, with NumPy or in kernels of C++ and Triton:
    then contents differ from one operator to the next.
    """

    def __init__(self) -> None:
        self._sums: dict[int, str] = {}
        self.changed = False
        """Whether memory changed without an operator."""

    def check(self, tensors: Iterable[tuple[Key, Any]]) -> None:
        """Compare the memory of tensors with that after the last operator that read, made or wrote it."""
        for key, tensor in tensors:
            if not self.changed and key[0] in self._sums:
                self.changed = self._sums[key[0]] != _checksum(tensor)

    def keep(self, tensors: Iterable[tuple[Key, Any]], written: Iterable[Key] = ()) -> None:
        """Keep the checksums of tensors that an operator read or made; `written` is what it wrote to."""
        for key in written:
            self._sums.pop(key[0], None)
        for key, tensor in tensors:
            if key[0] not in self._sums:
                self._sums[key[0]] = _checksum(tensor)


def _checksum(tensor: Any) -> str:
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    return checksum(host_array(memory))
