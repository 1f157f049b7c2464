"""Copies of tensors in memory that each step uses again."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from nncdbg.engine.ops.aten.inspection import is_dense
from nncdbg.engine.ops.aten.internals import is_wrapped, keeping_version, without_dispatch
from nncdbg.torch import guard_kernels

_PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Classes of tensors that have memory of their own."""


_SMALL = 1 << 18
"""The most bytes that are copied without an operator: each time to new memory, which is slow for more."""


class TensorCopies:
    """Copies of tensors.

    The memory of dense tensors is copied as bytes, with one operator for each device, which takes half the
    time of an operator for each tensor.  A little memory of the CPU is copied without any: an operator takes
    30 us inside of a training step.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._tensors: Sequence[Any] = ()
        self._places: Sequence[int] = ()
        self._dense: Sequence[_DenseCopies] = ()
        self._others: Sequence[tuple[Any, Any]] = ()
        """Each tensor with another layout, and its copy."""
        self.update(tensors)

    def update(self, tensors: Sequence[Any]) -> None:
        """Copy tensors as they are now, into the same memory if they have theirs still."""
        if not self._others and self._have_memory(tensors):
            for each in self._dense:
                each.update()
        else:
            with torch.no_grad():
                self._begin(tensors)

    def memory_of(self, owners: Sequence[Mapping[str, Any]]) -> Any | None:
        """Return an object of the library whose `content` returns what `take` takes.

        That is None if the values of `owners` are not these tensors in the same memory any more.  Returns
        None without the library, and if the copies are not a few bytes of the CPU.
        """
        library = guard_kernels.used
        if library is None or self._others or not {*map(type, self._dense)} <= {_FewBytes} or self._dense[1:]:
            return None
        return library.BufferMemory(owners, [*self._tensors])

    def take(self, content: bytes) -> None:
        """Replace the copies by a few bytes."""
        for each in self._dense:
            assert isinstance(each, _FewBytes)
            each.content = content

    @property
    def size(self) -> int:
        """The bytes of the copies."""
        return sum(each.size for each in self._dense) + sum(int(each.nbytes) for _, each in self._others)

    def restore(self) -> None:
        """Write the copies to the tensors."""
        with torch.no_grad():
            for tensor, content in self.contents():
                with keeping_version(tensor):
                    tensor.copy_(content)

    def _have_memory(self, tensors: Sequence[Any]) -> bool:
        """Return whether these are the tensors of the copies, in the memory that they had then."""
        return (
            len(tensors) == len(self._tensors)
            and all(map(operator.is_, tensors, self._tensors))
            and _places(tensors) == self._places
        )

    def _begin(self, tensors: Sequence[Any]) -> None:
        dense = [each for each in tensors if _is_dense(each)]
        devices = dict.fromkeys(each.device for each in dense)
        self._dense = [_dense_copies([each for each in dense if each.device == one]) for one in devices]
        self._others = [(each, each.detach().clone()) for each in tensors if not _is_dense(each)]
        self._tensors, self._places = tensors, [] if self._others else _places(tensors)

    def contents(self) -> Iterator[tuple[Any, Any]]:
        """Yield each tensor and a copy of its content that later updates leave alone."""
        yield from self._others
        for each in self._dense:
            yield from each.contents()


class _DenseCopies:
    """Copies of dense tensors on one device, one after the other."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self.tensors = tensors
        self.size = sum(int(each.nbytes) for each in tensors)
        """The bytes of the copies."""
        self._layouts = [(each.shape, each.stride(), each.dtype) for each in tensors]

    def update(self) -> None:
        """Copy the memory of the tensors."""
        raise NotImplementedError

    def _bytes(self) -> Any:
        """Return the copies as one tensor of bytes."""
        raise NotImplementedError

    def contents(self) -> Iterator[tuple[Any, Any]]:
        """Yield each tensor and its copy."""
        content, start = self._bytes(), 0
        for tensor, (shape, stride, dtype) in zip(self.tensors, self._layouts, strict=True):
            stop = start + shape.numel() * dtype.itemsize
            # Cloned, as bytes at any position cannot be read as wider numbers.
            yield tensor, content[start:stop].clone().view(dtype).as_strided(shape, stride)
            start = stop


class _FewBytes(_DenseCopies):
    """Copies of a little memory of the CPU, as an object of bytes."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        super().__init__(tensors)
        # No other tensor gets these addresses while they are in use.
        self._storages = [each.untyped_storage() for each in tensors]
        self._memory = [_characters(each.nbytes).from_address(each.data_ptr()) for each in tensors]
        self.content = b""
        self.update()

    def update(self) -> None:
        self.content = b"".join(self._memory)

    def _bytes(self) -> Any:
        # torch makes no tensor of an empty buffer.
        return torch.frombuffer(bytearray(self.content) or bytearray(1), dtype=torch.uint8)


@cache
def _characters(size: int) -> Any:
    """Return the class of so many bytes of memory; one that is not kept needs a garbage collection."""
    return ctypes.c_char * size


class _ManyBytes(_DenseCopies):
    """Copies that one operator makes, always in the same memory."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        super().__init__(tensors)
        # No dispatch mode sees the copies, so not one of the user either.
        with without_dispatch():
            flat = [each.detach().as_strided((each.numel(),), (1,)) for each in tensors]
            self._memory = [each.view(torch.uint8) for each in flat]
            self._content = torch.empty(self.size, dtype=torch.uint8, device=tensors[0].device)
        self.update()

    def update(self) -> None:
        with without_dispatch():
            torch.cat(self._memory, out=self._content)

    def _bytes(self) -> Any:
        return self._content


def _dense_copies(tensors: Sequence[Any]) -> _DenseCopies:
    """Return copies of dense tensors on one device."""
    few = tensors[0].is_cpu and sum(each.nbytes for each in tensors) <= _SMALL
    return _FewBytes(tensors) if few else _ManyBytes(tensors)


def _is_dense(tensor: Any) -> bool:
    """Return whether the elements of a tensor are all of a piece of memory of its own."""
    return bool(
        tensor.__class__ in _PLAIN
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not is_wrapped(tensor)
        and not (tensor.is_conj() or tensor.is_neg())
        and is_dense(tensor)
    )


def _places(tensors: Sequence[Any]) -> list[int]:
    """Return address and size of the memory of each tensor."""
    return [*map(torch.Tensor.data_ptr, tensors), *map(torch.Tensor.numel, tensors)]
