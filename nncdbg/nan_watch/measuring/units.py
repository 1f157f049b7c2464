"""Units of a layer (channels, neurons): which are dead, and which share of an activation is saturated.

These are the only quantities that look at a result once more; the results of other ops are not touched.
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
"""How near to its end an activation is saturated, as a share of its range."""

FEWEST_SAMPLES = 4
"""Samples of each unit without which nothing is said of dead ones."""

_FURTHEST = 16
"""Statements looked back over for the layer that an activation belongs to."""


def cuts(binding: Binding) -> bool:
    """Whether a statement is an activation that can leave a unit dead, also one written as ``Max(x, 0)``."""
    if binding.op.name != "Max":
        return binding.op.rectifies
    code = binding.code
    contents = [code.template[slot] for slot in code.operands[binding.pc]]
    return any(isinstance(each, np.ndarray) and each.size and not each.any() for each in contents)


def unit_axis(code: Code, pc: int, rank: int) -> int:
    """The axis along which the units of an activation's layer lie; a wanted one if the graph does not say."""
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
    """bool[units]: which units are other than 0 somewhere."""
    others = tuple(each for each in range(result.ndim) if each != axis)
    return np.asarray((result != 0).any(axis=others))


def saturated(op: Op, result: Array, attributes: Mapping[str, Any]) -> tuple[int, int]:
    """How many elements of an activation's result are at its bounds, and of how many.

    For an op that normalizes along `axis`: the rows in which one element is at the upper bound.  A row of one
    element is not counted.
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
