"""The default backend: the built-in kernels on NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from nncdbg.engine.backends import Call, Kernels
from nncdbg.engine.backends.arrays import bind_over
from nncdbg.engine.backends.kernel_namespace import KernelNamespace


class NumPy:
    """Values are NumPy arrays; kernels are built in."""

    name = "numpy"
    on_host = True
    runs_op_kernels = True

    def bind(self, call: Call) -> Kernels:
        if call.fresh is None or not call.op.foreign or call.op.reference:
            return bind_over(np, call)
        return bind_over(KernelNamespace(np, call.fresh), call)

    def to_device(self, array: Any) -> Any:
        return array

    def to_host(self, value: Any) -> Any:
        return value

    def summarize(self, value: Any, row: Any) -> None:
        raise AssertionError("summarize() is only for results in device memory")
