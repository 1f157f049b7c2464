"""Units of a layer (channels, neurons): dead units, and the saturated share of an activation.

Only these quantities read a result again, and only results of activations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.execution.linking import Binding
from nncdbg.engine.graph import Array
from nncdbg.engine.ops import Op, lookup
from nncdbg.engine.ops.schema import version_of

EDGE = 0.01
"""Distance from its bound at which an activation is saturated, as a share of its range."""

FEWEST_SAMPLES = 4
"""Least samples per unit for a verdict on dead units."""

_FURTHEST = 16
"""Statements searched backward for the layer of an activation."""


def cuts(binding: Binding) -> bool:
    """Return whether a statement is an activation that can make units dead, such as ReLU or ``Max(x, 0)``."""
    if binding.op.name != "Max":
        return binding.op.rectifies
    code = binding.code
    contents = [code.template[slot] for slot in code.operands[binding.pc]]
    return any(isinstance(each, np.ndarray) and each.size and not each.any() for each in contents)


def unit_axis(code: Code, pc: int, rank: int) -> int:
    """Return the axis of the units in an activation's layer; by default 1 above rank 3, else the last."""
    for _ in range(_FURTHEST):
        node = code.nodes[pc]
        op = lookup(node.op, version_of(node.op, code.opsets))
        axis = None if op is None else op.unit_axis
        if axis is not None and axis < rank:
            return axis % rank
        before = [code.definition[slot] for slot in code.operands[pc] if code.definition[slot] >= 0]
        if not before or node.op == "Transpose":
            break
        pc = before[0]
    return 1 if rank > 3 else rank - 1


def alive_units(result: Array, axis: int) -> npt.NDArray[np.bool_]:
    """Return bool[units]: the units with a nonzero element."""
    others = tuple(each for each in range(result.ndim) if each != axis)
    return np.asarray((result != 0).any(axis=others))


def saturated(op: Op, result: Array, attributes: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of elements of an activation's result at its bounds, and the number of elements.

    For an op that normalizes along `axis`: the number of rows with an element at the upper bound, and the
    number of rows.  Rows of one element are not counted.
    """
    assert op.bounds is not None
    low, high = op.bounds
    edge = EDGE * (high - low)
    if op.shares is None:
        return int(np.count_nonzero((result <= low + edge) | (result >= high - edge))), result.size
    axis = attributes.get("axis")
    axis = -1 if axis is None else int(axis)
    if result.ndim == 0 or result.shape[axis] < 2:
        return 0, 0
    highest = result.max(axis=axis)
    return int(np.count_nonzero(highest >= high - edge)), highest.size
