"""Remarks about results that are right here, but may be wrong elsewhere or are far from their operands.

An op declares its check in `Op.remark`.  A remark trips no gate: a watch lists it as a note.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from nncdbg.engine.dtypes import FLOATS, INTEGERS, integer_range, largest, name_of
from nncdbg.engine.text.counting import elements

FindRemark: TypeAlias = Callable[[Mapping[str, Any], Sequence[Any], Any, Collection[int]], str]
"""`find(attributes, inputs, result, constants) -> words`, empty if there is nothing to say.

`constants` are the numbers of the operands that are constants of the program.
"""

CLIPPED = 0.1
"""Share of the elements that a quantization clips from which it is remarkable."""


def _count(inputs: Sequence[Any], result: Any) -> int:
    return int(inputs[0].size // max(1, result.size))


def sum_inside(total: Callable[[Mapping[str, Any], Sequence[Any], Any], Any]) -> FindRemark:
    """Return the check of a sum inside an op: an f16 kernel that also adds in f16 would overflow."""

    def find(
        attributes: Mapping[str, Any], inputs: Sequence[Any], result: Any, constants: Collection[int]
    ) -> str:
        if name_of(result.dtype) != "f16" or not result.size:
            return ""
        with np.errstate(all="ignore"):
            found = total(attributes, inputs, result.astype(np.float64))
        if not largest("f16") < found < math.inf:
            return ""
        return (
            f"the sum inside reaches {found:.4g}, and the largest f16 is {largest('f16'):.0f}: a kernel that "
            "adds in f16 returns Inf (nncdbg adds in f32); scale the operand, or keep this op in f32"
        )

    return find


def _most(result: Any) -> Any:
    return np.abs(result).max()


mean = sum_inside(lambda attributes, inputs, result: _most(result) * _count(inputs, result))
window = sum_inside(
    lambda attributes, inputs, result: (
        _most(result) * math.prod(attributes["kernel_shape"])
        if not any(attributes.get("pads") or ())
        and attributes.get("auto_pad", "NOTSET") in ("NOTSET", "VALID")
        else 0.0
    )
)
root = sum_inside(lambda attributes, inputs, result: _most(result) ** 2)
norm = sum_inside(lambda attributes, inputs, result: _most(result) ** attributes.get("p", 2))
logarithm = sum_inside(lambda attributes, inputs, result: math.exp(min(700.0, float(result.max()))))


def clipped(
    attributes: Mapping[str, Any], inputs: Sequence[Any], result: Any, constants: Collection[int]
) -> str:
    """Return how many elements QuantizeLinear clips, except at 0, as a Relu clips these."""
    name = name_of(result.dtype)
    if name not in INTEGERS or not result.size or inputs[1].size != 1:
        return ""
    low, high = integer_range(name)
    zero = int(inputs[2].reshape(-1)[0]) if len(inputs) > 2 and inputs[2] is not None else 0
    limits = [limit for limit in (low, high) if limit != zero]
    if float(np.isin(result.astype(np.int64), limits).mean()) < CLIPPED:
        return ""
    with np.errstate(all="ignore"):
        exact = inputs[0].astype(np.float64) / float(inputs[1].reshape(-1)[0]) + zero
    # Half a step beyond the limit still rounds to it.
    wrong = (exact > high + 0.5) & (high != zero) | (exact < low - 0.5) & (low != zero)
    if float(wrong.mean()) < CLIPPED:
        return ""
    count = elements(int(wrong.sum()), wrong.size, "its operand")
    return f"{count} outside of the range of {name} and clipped; choose a larger scale, or calibrate again"


def underflowed(
    attributes: Mapping[str, Any], inputs: Sequence[Any], result: Any, constants: Collection[int]
) -> str:
    """Return how many elements of a constant a cast rounds to 0, if all of them or at least `CLIPPED`."""
    if 0 not in constants or name_of(result.dtype) not in FLOATS or name_of(inputs[0].dtype) not in FLOATS:
        return ""
    lost = (inputs[0] != 0) & (result == 0)
    if not lost.size or float(lost.mean()) < CLIPPED:
        return ""
    first = inputs[0][tuple(np.argwhere(lost)[0])] if lost.ndim else inputs[0]
    count = elements(int(lost.sum()), lost.size, "the constant")
    small = f"such as {float(first):.6g}: too small for {name_of(result.dtype)}"
    return f"{count} rounded to 0, {small}; use a larger constant"
