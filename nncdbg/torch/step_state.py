"""The state at the start of a step, other than parameters: random generators and buffers."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from nncdbg.engine.ops.aten.internals import keeping_version


class RandomState:
    """The states of the random generators of torch, Python and, if it is imported, NumPy."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = numpy.random.get_state() if numpy is not None else None

    def restore(self) -> None:
        torch.set_rng_state(self._torch)
        if self._devices:
            torch.cuda.set_rng_state_all(self._devices)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)


class BufferState:
    """Copies of tensors that a forward pass may change, such as running means."""

    def __init__(self, buffers: Iterable[Any]) -> None:
        self._copies = [(buffer, buffer.detach().clone()) for buffer in buffers]

    def restore(self) -> None:
        with torch.no_grad():
            for buffer, copy in self._copies:
                with keeping_version(buffer):
                    buffer.copy_(copy)

    def now(self) -> BufferState:
        """Return the same buffers with the content that they have now."""
        return BufferState(buffer for buffer, _ in self._copies)


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
