"""Replay of a recording: print, parse, run in the engine, and compare the bits."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

import nncdbg
from nncdbg.engine.ops.aten.arrays import host_array
from nncdbg.torch.recorded_step import RecordedProgram

FAILURES = (AssertionError, RuntimeError, TypeError, ValueError, KeyError, nncdbg.NncdbgError)
"""What a sample that does not replay raises."""


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors in nested lists and dictionaries."""
    return [each for each in torch.utils._pytree.tree_leaves(value) if isinstance(each, torch.Tensor)]


def run_backward(outputs: list[torch.Tensor]) -> None:
    """Run a backward pass from the sum of all results that have a gradient."""
    sums = [each.abs() if each.is_complex() else each for each in outputs if each.requires_grad]
    if sums:
        sum(each.double().sum() for each in sums).backward()


def replayed(recorded: Any) -> dict[str, Any]:
    """Print, parse and run a recorded step or program; return its results by name."""
    program = nncdbg.Program.parse(recorded.program.text())
    assert program == recorded.program
    # The inputs of a step hold the first values of its states.
    first = recorded.states if isinstance(recorded, RecordedProgram) else {}
    debugger = nncdbg.Debugger(program, {**recorded.inputs, **first}, backend="torch", statistics=False)
    stop = debugger.run()
    assert stop.reason == "end", stop.error
    assert debugger.outputs is not None
    return debugger.outputs


def differing(
    computed: dict[str, Any], changed: dict[str, str], outputs: dict[str, Any], before: dict[str, Any]
) -> list[str]:
    """Return the names of tensors that the program computes to other bits.

    The program must compute those that are not in `before`; one that it does not compute must be unchanged.
    """
    found = []
    for name, tensor in computed.items():
        expected = outputs[changed[name]] if name in changed else before.get(name)
        if expected is None or not same_bits(host_array(tensor), expected):
            found.append(name)
    return found


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether arrays have the same dtype, shape and bits, but for the payload of NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    if a.tobytes() == b.tobytes():
        return True
    if a.dtype.kind == "c":
        a, b = np.atleast_1d(a).view(a.real.dtype), np.atleast_1d(b).view(a.real.dtype)
    if a.dtype.kind not in "fV":
        return False
    nan = np.isnan(a) & np.isnan(b)
    return np.where(nan, 0, a).tobytes() == np.where(nan, 0, b).tobytes()


def copies(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, np.ndarray]:
    """Return copies of tensors as arrays, by name."""
    return {name: host_array(each).copy() for name, each in tensors}
