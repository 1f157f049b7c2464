"""Kernels of one backend in a run of another: operands and results change their libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nncdbg.engine.backends import Backend, Call, Execute, Kernels


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
