"""PyTorch's operators on its tensors: statements of the domains ``aten``, ``prims`` and ``torch``.

Statements of ONNX that one function of torch computes run too (`torch_onnx.py`).

Values are `torch.Tensor`s.  A CPU tensor and its NumPy array share memory; tensors on a device stay there.
No operator writes to an operand: it gets a copy, with the same strides, of what it writes to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from nncdbg.engine.backends import (
    Call,
    CompiledStatements,
    Execute,
    Kernels,
    array_storage,
    refusal,
    way_past,
)
from nncdbg.engine.backends.numpy import NumPy
from nncdbg.engine.ops.aten.versions import check_version
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.ir.kinds import Kind
from nncdbg.stats import summarize
from nncdbg.stats.inspection import row_of
from nncdbg.text.torch_names import is_torch


class Torch:
    """The operators of the installed torch.  Raises UsageError without torch, or for another version."""

    name = "torch"
    on_host = False
    runs_op_kernels = False
    unchecked = (
        "only floats are checked: `empty` gives NaN, so a float read before a write is reported as NaN"
    )

    def __init__(self) -> None:
        _check_installed()
        from nncdbg.engine.ops.aten.arrays import (
            as_tensor,
            device_bytes,
            device_name,
            host_memory,
            tensor_storage,
        )
        from nncdbg.engine.ops.aten.internals import below_autograd

        self._below_autograd: Callable[[], AbstractContextManager[Any]] = below_autograd
        self._as_tensor = as_tensor
        self._device_bytes = device_bytes
        self._tensor_storage = tensor_storage
        self._numpy = NumPy()
        self.memory = host_memory
        self.device = device_name

    def bind(self, call: Call) -> Kernels:
        if call.node.op.startswith("nncdbg."):
            return self._on_host(call)
        if call.node.kind is Kind.UPDATE:
            return Kernels(call.op.bind(np, {}), views=True)
        if not is_torch(call.node.op):
            from nncdbg.engine.backends.torch_onnx import onnx_call

            run = onnx_call(call, self.to_device)
            if run is not None:
                return Kernels(run)
            fact = f"{call.node.op} has no kernel on torch: it is not an operator of PyTorch"
            return refusal(fact, lambda: way_past(call.node, "use --fallback to run it on NumPy"))
        try:
            from nncdbg.engine.backends.torch_calls import gives_views, operator_call

            return Kernels(operator_call(call, self.to_device), views=gives_views(call))
        except NncdbgError as error:
            return refusal(error.message, error.hint)

    def executing(self) -> AbstractContextManager[Any]:
        """Return a block in which operators record no autograd graph.

        As where they were recorded, operators see that gradients are enabled: some keep more results then.
        """
        return self._below_autograd()

    def compiled_statements(self) -> CompiledStatements | None:
        from nncdbg.engine.backends.torch_statements import LIBRARY

        return LIBRARY.module()

    def to_device(self, array: Any) -> Any:
        if not isinstance(array, (np.ndarray, np.generic)) or array.dtype.hasobject:
            return array
        return self._as_tensor(np.asarray(array))

    def to_host(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self.to_host(item) for item in value]
        from nncdbg.engine.ops.aten.arrays import host_array

        return host_array(value)

    def wait(self) -> None:
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def to_host_together(self, values: Sequence[Any]) -> list[Any]:
        from nncdbg.engine.ops.aten.arrays import host_arrays

        return host_arrays(values, self.to_host)

    def storage(self, value: Any) -> tuple[int, int] | None:
        return self._tensor_storage(value) or array_storage(value)

    def mixes_devices(self, kernel: Execute, operands: Sequence[Any]) -> bool:
        from nncdbg.engine.backends.torch_tensors import accepts_devices

        return accepts_devices(kernel, operands)

    def device_bytes(self, values: Iterable[Any]) -> int | None:
        return self._device_bytes(values)

    def drain(self) -> int:
        from nncdbg.engine.ops.aten.arrays import drain_devices

        return drain_devices()

    def summarize(self, value: Any, row: Any) -> None:
        if value.is_meta:
            row.fill_(0)
            row[:4] = np.nan
            return
        row.copy_(self.to_device(np.asarray(row_of(summarize(self.to_host(value))))))

    def _on_host(self, call: Call) -> Kernels:
        """Return the built-in kernel of one of the debugger's own ops, on NumPy."""
        run = self._numpy.bind(call).run

        def moved(*inputs: Any) -> Any:
            results = run(*map(self.to_host, inputs))
            return [*map(self.to_device, results)] if call.several else self.to_device(np.asarray(results))

        return Kernels(moved)


def _check_installed() -> None:
    from nncdbg.text.torch_names import installed

    if not installed():
        raise UsageError(
            "the backend torch needs the package torch, which is not installed",
            hint="pip install nncdbg[torch]",
        )
    check_version()
