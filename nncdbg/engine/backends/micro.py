"""The kernels of micro programs: NumPy's, and torch's for statements of its domains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nncdbg.engine.backends import Backend, Call, HostBackend, Kernels, backend
from nncdbg.engine.backends.composed import call_of
from nncdbg.engine.backends.numpy import NumPy
from nncdbg.engine.compilation.code import Code
from nncdbg.text.torch_names import is_torch


class MicroKernels(HostBackend):
    """Kernels on NumPy arrays, which torch's operators share."""

    name = "numpy"
    runs_op_kernels = True

    def __init__(self) -> None:
        self._numpy = NumPy()
        self._torch: Backend | None = None

    def bind(self, call: Call) -> Kernels:
        if not is_torch(call.node.op):
            return self._numpy.bind(call)
        self._torch = torch = self._torch or backend("torch")
        run = torch.bind(call).run

        def on_host(*inputs: Any) -> Any:
            return torch.to_host(run(*map(torch.to_device, inputs)))

        return Kernels(on_host)


def run_definition(code: Code, pc: int, inputs: Sequence[Any]) -> Sequence[Any]:
    """Return the results of a statement's definition over these NumPy arrays; its op must not be random.

    Raises NncdbgError if there is no definition, or if it fails.
    """
    call = call_of(code, pc, _no_generator)
    with np.errstate(all="ignore"):
        results = MicroKernels().bind(call).run(*inputs)
    return results if call.several or isinstance(results, tuple) else (results,)


def _no_generator(seed: float | None) -> Any:
    raise AssertionError("random ops are not computed again")
