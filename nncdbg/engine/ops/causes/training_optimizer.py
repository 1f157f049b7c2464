"""Causes in the optimizer of a training step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import ml_dtypes
import numpy as np

from nncdbg.engine.dtypes import name_of
from nncdbg.engine.ops.aten.names import base_name
from nncdbg.engine.ops.causes import Birth, Cause
from nncdbg.engine.ops.causes.numbers import ends, is_float, shown
from nncdbg.engine.ops.causes.places import at, element, spelled, spot
from nncdbg.engine.ops.causes.torch_operands import paired
from nncdbg.engine.ops.causes.torch_operators import described
from nncdbg.engine.ops.causes.training_forward import HALF, here, overflow

_CLIP = "clip gradients with torch.nn.utils.clip_grad_norm_, and check weight_decay and the learning rate"
_LOWER_RATE = "lower the learning rate, or clip gradients with torch.nn.utils.clip_grad_norm_"
_RATE = frozenset({"lr", "alpha", "value", "scalars"})
"""Arguments that are a learning rate if the operator changes its first operand."""


def in_optimizer(birth: Birth) -> Cause | None:
    if not birth.graph.startswith("optimizer"):
        return None
    base = base_name(birth.op)
    option = next(_bad_options(birth), None)
    if option is not None:
        return _bad_option(birth, *option)
    if birth.kind == "inf" and base in ("add", "sub") and birth.attributes.get("alpha") is not None:
        return _too_large(birth)
    found = described(birth)
    if _divides_by_zero(birth, found):
        return _division(birth, found)
    found = found or overflow(birth)
    if found is not None and _is_multiplied_by_rate(birth):
        return Cause("learning rate too large", f"from the learning rate, {found.evidence}", _LOWER_RATE)
    if found is not None and found.name in ("overflow", "division by zero", "zero divided by zero"):
        return replace(found, name="overflow in the optimizer", hint=_CLIP)
    return found


def _bad_options(birth: Birth) -> Iterator[tuple[str, float]]:
    """Yield the numbers among the arguments that are no finite numbers of the type of the result.

    In an operator on lists, the number of the element comes first.
    """
    if not is_float(birth.output):
        return
    most = float(ml_dtypes.finfo(birth.output.dtype).max)
    for key, value in birth.attributes.items():
        given = value if isinstance(value, tuple) else (value,)
        for each in (*given[birth.index : birth.index + 1], *given):
            if isinstance(each, float) and not abs(each) <= most:
                yield key, each


def _bad_option(birth: Birth, key: str, value: float) -> Cause:
    evidence = f"{key} of {birth.op} is {shown(value)}"
    if math.isfinite(value):
        evidence += f", and {ends(birth.output.dtype)}"
    if key in _RATE and _is_in_place(birth):
        evidence = f"from the learning rate, {evidence}"
        return Cause("learning rate too large", evidence, "check the schedule: scheduler.get_last_lr()")
    hint = "check the options of the optimizer: its learning rate, weight_decay and eps"
    return Cause("overflow in the optimizer", evidence, hint)


def _is_in_place(birth: Birth) -> bool:
    return birth.op.split(".")[1].endswith("_")


def _is_multiplied_by_rate(birth: Birth) -> bool:
    """Return whether a product with a number, the larger factor, is Inf: a step is made of a moment so.

    In place, the number is a decay of a weight or moment.
    """
    number = birth.attributes.get("other")
    if birth.kind != "inf" or base_name(birth.op) != "mul" or number is None or _is_in_place(birth):
        return False
    return bool(abs(number) > abs(element(birth.inputs[0], spot(birth))))


def _too_large(birth: Birth) -> Cause | None:
    pair = paired(birth)
    if pair is None:
        return None
    rate = float(birth.attributes["alpha"])
    norms = [float(np.linalg.norm(each.astype(np.float64))) for each in pair.inputs]
    index = spot(birth)
    terms = [element(each, index) for each in pair.inputs]
    evidence = (
        f"{shown(terms[0])} + {shown(rate)} * {shown(terms[1])}{at(index)}; the norm of "
        f"{spelled(pair, 0)} is {shown(norms[0])}, that of {spelled(pair, 1)} {shown(norms[1])}"
    )
    if _is_in_place(birth):
        # The gradient comes with a weight of its own, which is no learning rate, in a momentum.
        if rate < 0:
            return Cause("learning rate too large", evidence, _LOWER_RATE)
        return Cause("overflow in the optimizer", evidence, _CLIP)
    hint = "lower weight_decay, or clip gradients with torch.nn.utils.clip_grad_norm_"
    return Cause("overflow in the optimizer", evidence, hint)


_DIVISIONS = frozenset({"div", "addcdiv", "reciprocal", "rsqrt", "true_divide"})


def _divides_by_zero(birth: Birth, found: Cause | None) -> bool:
    """Return whether an update divides by 0, as the rule of its operator says, or as a fused one with eps."""
    if base_name(birth.op).startswith("_fused"):
        eps = birth.attributes.get("eps")
        return eps is not None and not birth.output.dtype.type(eps)
    return base_name(birth.op) in _DIVISIONS and found is not None and "by zero" in found.name


def _division(birth: Birth, found: Cause | None) -> Cause:
    dtype = name_of(birth.output.dtype)
    evidence = found.evidence if found is not None else f"eps of {birth.op} is 0 in {dtype}; {here(birth)}"
    if birth.kind == "inf" and dtype in HALF:
        hint = "keep parameters and moments in f32, or use eps of 1e-4 or more"
        evidence += f"; squares of small gradients and a small eps are 0 in {dtype}"
        return Cause("underflow in the optimizer", evidence, hint)
    hint = "use eps above 0 in the optimizer (1e-8 is usual): a gradient of 0 gives 0 / 0"
    return Cause("division in the optimizer", evidence, hint)
