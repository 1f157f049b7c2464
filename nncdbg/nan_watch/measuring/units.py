"""Units of a layer (channels, neurons): which are dead, and which share of an activation is saturated.

These are the only quantities that look at a result once more; the results of other ops are not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.graph import Array

EDGE = 0.01
"""How near to its end an activation is saturated, as a share of its range."""

FEWEST_SAMPLES = 4
"""Samples of each unit without which nothing is said of dead ones."""

_CUTTING = frozenset({"Relu", "Clip", "ThresholdedRelu", "HardSwish", "HardSigmoid", "Shrink"})
"""Activations that are exactly 0 on one side."""

_CHANNELS_FIRST = frozenset(
    {"Conv", "ConvTranspose", "ConvInteger", "BatchNormalization", "InstanceNormalization"}
    | {"GroupNormalization", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Resize", "LRN"}
)
_CHANNELS_LAST = frozenset(
    {"MatMul", "Gemm", "LayerNormalization", "RMSNormalization", "Attention", "MatMulInteger"}
)
_FURTHEST = 16
"""Statements looked back over for the layer that an activation belongs to."""


def cuts(code: Code, pc: int) -> bool:
    """Whether a statement is an activation that can leave a unit dead."""
    node = code.nodes[pc]
    if node.op != "Max":
        return node.op in _CUTTING
    contents = [code.template[slot] for slot in code.operands[pc]]
    return any(isinstance(each, np.ndarray) and each.size and not each.any() for each in contents)


def unit_axis(code: Code, pc: int, rank: int) -> int:
    """The axis along which the units of an activation's layer lie; a wanted one if the graph does not say."""
    for _ in range(_FURTHEST):
        op = code.nodes[pc].op
        if op in _CHANNELS_FIRST and rank > 1:
            return 1
        if op in _CHANNELS_LAST:
            return rank - 1
        before = [code.definition[slot] for slot in code.operands[pc] if code.definition[slot] >= 0]
        if not before or op == "Transpose":
            break
        pc = before[0]
    return 1 if rank > 3 else rank - 1


def alive_units(result: Array, axis: int) -> npt.NDArray[np.bool_]:
    """bool[units]: which units are other than 0 somewhere."""
    others = tuple(each for each in range(result.ndim) if each != axis)
    return np.asarray((result != 0).any(axis=others))


def _sigmoid_ends(result: Array, attributes: Mapping[str, Any]) -> tuple[int, int]:
    return int(np.count_nonzero((result <= EDGE) | (result >= 1 - EDGE))), result.size


def _tanh_ends(result: Array, attributes: Mapping[str, Any]) -> tuple[int, int]:
    return int(np.count_nonzero(np.abs(result) >= 1 - 2 * EDGE)), result.size


def _softmax_ends(result: Array, attributes: Mapping[str, Any]) -> tuple[int, int]:
    """Rows in which one element has it all; a row of one element has no choice."""
    axis = attributes.get("axis")
    axis = -1 if axis is None else int(axis)
    if result.ndim == 0 or result.shape[axis] < 2:
        return 0, 0
    highest = result.max(axis=axis)
    return int(np.count_nonzero(highest >= 1 - EDGE)), highest.size


SATURATING: dict[str, Callable[[Array, Mapping[str, Any]], tuple[int, int]]] = {
    "Sigmoid": _sigmoid_ends,
    "HardSigmoid": _sigmoid_ends,
    "Tanh": _tanh_ends,
    "Softmax": _softmax_ends,
}
"""Op to `(result, attributes) -> (how many are at an end, of how many)`."""
