"""Mixed runs: statements without a kernel in the backend run on NumPy, and are listed."""

from __future__ import annotations

from typing import Any

import numpy as np

from nncdbg.engine.backends import Backend, Call, Execute, Kernels
from nncdbg.engine.backends.moving import moving
from nncdbg.engine.backends.numpy import NumPy
from nncdbg.engine.compilation.code import Statement
from nncdbg.errors import UnsupportedOp


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
