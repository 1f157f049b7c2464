"""Units of a layer (channels, neurons): dead units, and the saturated share of an activation.

Only these quantities read a result again, and only results of activations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.ops import Op, lookup
from nncdbg.engine.ops.schema import version_of
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import Array

EDGE = 0.01
"""Distance from its bound at which an activation is saturated, as a share of its range."""

_FURTHEST = 16
"""Statements searched backward for the layer of an activation."""


def op_of(code: Code, pc: int) -> Op | None:
    """Return the declaration of the op of a statement."""
    name = code.nodes[pc].op
    return lookup(name, version_of(name, code.opsets))


def cuts(code: Code, pc: int, op: Op) -> bool:
    """Return whether a statement is an activation with results cut off at 0: ReLU, or ``Max(x, 0)``."""
    return 0.0 in _cut_off(code, pc, op)


def flat_values(code: Code, pc: int, op: Op) -> tuple[float, ...]:
    """Return the results of an activation where its derivative is 0; empty for other statements.

    0 for ReLU, 0 and 6 for ``Clip(x, 0, 6)``, -1 and 1 for Tanh, whose results are rounded to these limits.
    """
    found = [*_cut_off(code, pc, op)]
    if op.bounds is not None and op.shares is None:
        found += op.bounds
    return tuple(sorted({*found}))


def _cut_off(code: Code, pc: int, op: Op) -> list[float]:
    """Return the values at which an activation cuts its results off."""
    given = [code.template[slot] for slot in code.operands[pc]]
    limits = [float(each.flat[0]) for each in _at(given, op.limits) if _is_one_number(each)]
    return limits if op.limits and len(given) > 1 else [0.0] if op.rectifies else []


def _at(given: Sequence[Any], indices: Sequence[int]) -> Iterator[Any]:
    return (given[index] for index in indices if index < len(given))


def _is_one_number(content: Any) -> bool:
    is_array = isinstance(content, np.ndarray) and not content.dtype.hasobject and content.size > 0
    return is_array and bool((content == content.flat[0]).all())


def unit_axis(code: Code, pc: int, rank: int) -> int:
    """Return the axis of the units in an activation's layer, else the usual one."""
    found = layer_axis(code, pc, rank)
    return usual_axis(rank) if found is None else found


def usual_axis(rank: int) -> int:
    """Return the axis on which units usually are: 1 above rank 3, else the last."""
    return 1 if rank > 3 else rank - 1


def layer_axis(code: Code, pc: int, rank: int) -> int | None:
    """Return the axis of the units in the layer before an activation; None if no layer is found."""
    for _ in range(_FURTHEST):
        op = op_of(code, pc)
        axis = None if op is None else op.unit_axis
        if axis is not None and axis < rank:
            return axis % rank
        before = [code.definition[slot] for slot in code.operands[pc] if code.definition[slot] >= 0]
        if not before or code.nodes[pc].op == "Transpose":
            break
        pc = before[0]
    return None


def feeds_layer(code: Code, pc: int) -> bool:
    """Return whether a result reaches a layer, a block or a call in its graph, or leaves the graph's block.

    False only for results that are at once part of a loss, such as the terms of a hinge loss.
    """
    waiting = [pc]
    seen = {pc}
    while waiting:
        slots = {*code.result_slots(waiting.pop())}
        for reader, node in enumerate(code.nodes):
            if reader in seen or not slots & code.reads(reader):
                continue
            op = op_of(code, reader)
            if node.subgraphs or node.kind is Kind.CALL or (op is not None and op.unit_axis is not None):
                return True
            seen.add(reader)
            waiting.append(reader)
    return False


def alive_units(result: Array, axis: int, flat: Sequence[float] = (0.0,)) -> npt.NDArray[np.bool_]:
    """Return bool[units]: the units with an element that is none of the `flat` values."""
    others = tuple(each for each in range(result.ndim) if each != axis)
    alive = result != flat[0]
    for value in flat[1:]:
        alive &= result != value
    return np.asarray(alive.any(axis=others))


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
