"""Kernels with a planted bug, for tests of the checks that find it."""

from __future__ import annotations

from typing import Any

import numpy as np

from nncdbg.engine.backends import Call, Kernels
from nncdbg.engine.backends.numpy import NumPy


class Planted(NumPy):
    """NumPy with one wrong kernel: `change` is applied to results of `op` after the first `after` calls."""

    def __init__(self, op: str, change: Any, after: int = 0) -> None:
        super().__init__()
        self.op, self.change, self.after, self.calls = op, change, after, 0

    def bind(self, call: Call) -> Kernels:
        kernels = super().bind(call)
        if call.node.op != self.op:
            return kernels

        def run(*inputs: Any) -> Any:
            self.calls += 1
            result = kernels.run(*inputs)
            return self.change(np.array(result)) if self.calls > self.after else result

        return Kernels(run)


def bumped(array: Any) -> Any:
    array[..., 0] += 0.01
    return array


def x_of(*shape: int) -> Any:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)
