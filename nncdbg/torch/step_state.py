"""The state at the start of a step, other than parameters: random generators and buffers."""

from __future__ import annotations

import ctypes
import operator
import random
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from nncdbg.engine.ops.aten.internals import copy_each, keeping_version


class RandomState:
    """The states of the random generators of torch, Python and, if it is imported, NumPy."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        self._python = random.getstate()
        self._numpy = _numpy_state() if "numpy" in sys.modules else None

    def restore(self) -> None:
        torch.set_rng_state(self._torch)
        if self._devices:
            torch.cuda.set_rng_state_all(self._devices)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)


_numpy_seen: tuple[bytes, Any] = b"", None
"""The memory of NumPy's global generator when its state was last read, and that state."""


def _numpy_state() -> Any:
    """Return the state of NumPy's global generator.

    Reading it takes longer than all else in a `RandomState`, and most steps do not draw from it.  The
    memory of a Mersenne Twister has all of its state but one number kept from a pair: if there was none
    and the memory is unchanged, there still is none.
    """
    global _numpy_seen
    numpy_random = sys.modules["numpy"].random
    generator = numpy_random.get_bit_generator()
    memory = b""
    if type(generator) is numpy_random.MT19937:
        memory = ctypes.string_at(generator.ctypes.state_address, _TWISTER_BYTES)
        if memory == _numpy_seen[0] and not _numpy_seen[1][3]:
            return _numpy_seen[1]
    state = numpy_random.get_state()
    _numpy_seen = memory, state
    return state


_TWISTER_BYTES = 625 * 4
"""Size of the state of a Mersenne Twister in memory: 624 words and the position."""


class TensorCopies:
    """Copies of tensors."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._tensors: Sequence[Any] = ()
        self._contents: Sequence[Any] = ()
        self.update(tensors)

    def update(self, tensors: Sequence[Any]) -> None:
        """Copy tensors as they are now, into the same memory where that fits."""
        with torch.no_grad():
            if tensors and _same(tensors, self._tensors) and all(map(_fits, tensors, self._contents)):
                copy_each(self._contents, tensors)
            else:
                self._tensors, self._contents = tensors, [each.detach().clone() for each in tensors]

    def restore(self) -> None:
        """Write the copies to the tensors."""
        with torch.no_grad():
            for tensor, content in zip(self._tensors, self._contents, strict=True):
                with keeping_version(tensor):
                    tensor.copy_(content)


class BufferState:
    """Copies of the buffers of a module, which a forward pass may change, such as running means."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = weakref.ref(module)
        self._owners = [each._buffers for each in module.modules()]
        self._copies = TensorCopies(self._buffers())

    def update(self) -> None:
        """Copy the buffers as they are now."""
        self._copies.update(self._buffers())

    def restore(self) -> None:
        self._copies.restore()

    def now(self) -> BufferState:
        """Return the content that the buffers of the module have now."""
        module = self._module()
        return self if module is None else BufferState(module)

    def _buffers(self) -> list[Any]:
        return [
            each
            for owner in self._owners
            for each in owner.values()
            if each is not None and not torch.nn.parameter.is_lazy(each)
        ]


class KeptBuffers:
    """The state of the buffers of modules, in memory that each step uses again."""

    def __init__(self) -> None:
        self._states: weakref.WeakKeyDictionary[torch.nn.Module, BufferState] = weakref.WeakKeyDictionary()

    def of(self, module: torch.nn.Module) -> BufferState:
        """Return the state of a module now.  The state that was returned before for it is no longer valid."""
        state = self._states.get(module)
        if state is None:
            state = self._states[module] = BufferState(module)
        else:
            state.update()
        return state


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _fits(tensor: Any, content: Any) -> bool:
    """Return whether a tensor, which may have other memory than before, can be copied into `content`."""
    return bool(tensor.shape == content.shape and tensor.dtype is content.dtype)


@contextmanager
def rerun_from(
    start: RandomState, buffers: Sequence[BufferState], parameters: Iterable[Any], zeroed: Iterable[Any] = ()
) -> Iterator[None]:
    """Enter the state at the start of a step; restore everything after the block.

    No parameter has a gradient then, except those in `zeroed`, which have one of zeros.
    """
    now = RandomState()
    later = [each.now() for each in buffers]
    gradients = [(parameter, parameter.grad) for parameter in parameters]
    try:
        for each in buffers:
            each.restore()
        for parameter, _ in gradients:
            parameter.grad = None
        for parameter in zeroed:
            parameter.grad = torch.zeros_like(parameter)
        start.restore()
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for each in later:
            each.restore()
        now.restore()
