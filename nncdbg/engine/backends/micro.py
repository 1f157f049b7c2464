"""The kernels of micro programs: NumPy's, and torch's for statements of its domains."""

from __future__ import annotations

from typing import Any

from nncdbg.engine.backends import Backend, Call, HostBackend, Kernels, backend
from nncdbg.engine.backends.numpy import NumPy
from nncdbg.engine.ops.aten.names import is_torch


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
