"""Kernels of one backend in a run of another: operands and results change their libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nncdbg.engine.backends import Backend, Call, Execute, Kernels
from nncdbg.engine.backends.numpy import NumPy
from nncdbg.engine.compilation.code import Statement
from nncdbg.errors import UnsupportedOp


def kernels_for(computing: Backend, holding: Backend, call: Call) -> Kernels:
    """Return the kernels of `computing` for a statement whose values the backend `holding` holds.

    Operands reach the kernel as NumPy arrays, as constants always do; results return to the device of
    `holding`.
    """
    kernels = computing.bind(call)
    if computing is holding or (computing.on_host and holding.on_host):
        return kernels
    return Kernels(moving(kernels.run, computing, holding, call.several), views=kernels.views)


def moving(kernel: Execute, computing: Backend, holding: Backend, several: bool) -> Execute:
    """Wrap a kernel of `computing`: copy operands to the host, and results to where `holding` holds them."""
    if computing.on_host and holding.on_host:
        return kernel
    executing, from_kernel = computing.executing, computing.to_host
    to_host, to_device = holding.to_host, holding.to_device

    def run(*inputs: Any) -> Any:
        with executing():
            results = from_kernel(kernel(*map(to_host, inputs)))
        return [_placed(to_device, each) for each in results] if several else _placed(to_device, results)

    return run


def _placed(to_device: Callable[[Any], Any], result: Any) -> Any:
    """Return a result on the device, or a sequence of such; None for an omitted one."""
    if isinstance(result, (list, tuple)):
        return [_placed(to_device, item) for item in result]
    return None if result is None else to_device(np.asarray(result))


class Fallback:
    """Covers the kernels of `backend`.  `fallen` lists each statement that ran on NumPy so far, once."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._numpy = NumPy()
        self.fallen: list[Statement] = []

    def cover(self, kernels: Kernels, call: Call, statement: Statement) -> Kernels:
        """Return kernels that switch to NumPy permanently when the given ones raise UnsupportedOp."""
        ours = self._numpy.bind(call)
        run = self._covered(
            kernels.run, moving(ours.run, self._numpy, self._backend, call.several), statement
        )
        if kernels.into is None:
            return Kernels(run)
        into = ours.into if ours.into is not None else _copying(ours.run)
        return Kernels(run, self._covered(kernels.into, into, statement))

    def _covered(self, theirs: Execute, ours: Execute, statement: Statement) -> Execute:
        chosen = theirs

        def execute(*arguments: Any) -> Any:
            nonlocal chosen
            try:
                return chosen(*arguments)
            except UnsupportedOp:
                if chosen is ours:
                    raise
            chosen = ours
            result = ours(*arguments)
            self._note(statement)
            return result

        return execute

    def _note(self, statement: Statement) -> None:
        if all(other.code is not statement.code or other.pc != statement.pc for other in self.fallen):
            self.fallen.append(statement)


def _copying(kernel: Execute) -> Execute:
    """Wrap a kernel that allocates its result so that it writes into the buffer given last."""

    def run(*arguments: Any) -> Any:
        np.copyto(arguments[-1], kernel(*arguments[:-1]))
        return arguments[-1]

    return run
