"""Causes in the forward pass of a training step, and those that all phases share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nncdbg.engine.dtypes import name_of
from nncdbg.engine.ops.aten.names import base_name
from nncdbg.engine.ops.causes import Birth, Cause, Made
from nncdbg.engine.ops.causes.numbers import ends, is_float, largest, shown
from nncdbg.engine.ops.causes.places import at, element, spelled, spot
from nncdbg.engine.ops.causes.torch_operators import described

HALF = ("f16", "bf16")

_MOVING = frozenset(
    {"view", "_unsafe_view", "t", "transpose", "permute", "expand", "squeeze", "unsqueeze", "detach", "alias"}
    | {"_to_copy", "clone", "select", "slice"}
)


def in_forward(birth: Birth) -> Cause | None:
    found = described(birth)
    if found is None:
        found = overflow(birth)
    if found is None:
        return None
    if found.name in ("zero divided by zero", "division by zero") and _is_deviation(maker_of(birth, 1)):
        return Cause("zero variance", f"the deviation {spelled(birth, 1)} is 0: {found.evidence}", "")
    if found.name == "overflow" and name_of(birth.output.dtype) in HALF:
        return replace(found, name="overflow of half precision")
    return found


def overflow(birth: Birth) -> Cause | None:
    """Return an overflow if all operands are finite and large for the type of the result."""
    numbers = [each for each in birth.inputs if is_float(each)]
    if birth.kind != "inf" or not numbers or not is_float(birth.output):
        return None
    if not all(np.isfinite(each).all() for each in numbers):
        return None
    most = max((float(np.abs(each).max()) for each in numbers if each.size), default=0.0)
    if most * most * 64 < float(largest(birth.output.dtype)):
        return None
    evidence = f"the operands of {birth.op} reach {shown(most)}, and {ends(birth.output.dtype)}"
    return Cause("overflow", evidence, "")


def maker_of(birth: Birth, number: int) -> Made | None:
    return birth.makers[number] if number < len(birth.makers) else None


def _is_deviation(maker: Made | None) -> bool:
    """Return whether a value is a standard deviation or a variance, moved and nothing else."""
    while maker is not None and base_name(maker.op) in _MOVING:
        maker = maker.of[0] if maker.of else None
    return maker is not None and base_name(maker.op) in ("std", "var", "std_mean", "var_mean")


def here(birth: Birth) -> str:
    """Describe the elements of the operands at the first bad element of the result."""
    index = spot(birth)
    found = []
    for number, each in enumerate(birth.inputs):
        if is_float(each) and each.ndim <= len(index):
            try:
                value = element(each, index)
            except IndexError:
                continue
            found.append(f"{spelled(birth, number)} is {shown(value)}")
    return f"{', '.join(found)}{at(index)}" if found else f"element{at(index)} of the result is {birth.kind}"
