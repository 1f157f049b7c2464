"""Causes in the optimizer of a training step."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from nncdbg.engine.dtypes import name_of
from nncdbg.engine.ops.aten.names import base_name
from nncdbg.engine.ops.causes import Birth, Cause
from nncdbg.engine.ops.causes.numbers import shown
from nncdbg.engine.ops.causes.places import at, element, spelled, spot
from nncdbg.engine.ops.causes.torch_operators import described
from nncdbg.engine.ops.causes.training_forward import HALF, here, overflow


def in_optimizer(birth: Birth) -> Cause | None:
    if not birth.graph.startswith("optimizer"):
        return None
    base = base_name(birth.op)
    rate = _rate(birth)
    if base == "add" and rate is not None and not math.isfinite(rate):
        update = f"{spelled(birth, 0)} + {shown(rate)} * {spelled(birth, 1)}"
        evidence = f"{update}: the learning rate is {shown(abs(rate))}"
        return Cause("learning rate too large", evidence, "check the schedule: scheduler.get_last_lr()")
    if birth.kind == "inf" and base in ("add", "sub") and rate is not None:
        return _too_large(birth, rate)
    if base in _DIVISIONS or base.startswith("_fused"):
        return _division(birth)
    found = described(birth) or overflow(birth)
    if found is not None and found.name == "overflow":
        hint = (
            "clip gradients with torch.nn.utils.clip_grad_norm_, and check weight_decay and the learning rate"
        )
        return replace(found, name="overflow in the optimizer", hint=hint)
    return found


_DIVISIONS = frozenset({"div", "addcdiv", "reciprocal", "rsqrt", "true_divide"})


def _rate(birth: Birth) -> float | None:
    given: Any = birth.attributes.get("alpha")
    return None if given is None else float(given)


def _too_large(birth: Birth, rate: float) -> Cause:
    target, update = birth.inputs[0], birth.inputs[1]
    norms = [float(np.linalg.norm(each.astype(np.float64))) for each in (target, update)]
    index = spot(birth)
    terms = [element(each, index) for each in (target, update)]
    evidence = (
        f"{shown(terms[0])} + {shown(rate)} * {shown(terms[1])}{at(index)}; the norm of "
        f"{spelled(birth, 0)} is {shown(norms[0])}, that of {spelled(birth, 1)} {shown(norms[1])}"
    )
    if birth.op.split(".")[1].endswith("_"):
        hint = "lower the learning rate, or clip gradients with torch.nn.utils.clip_grad_norm_"
        return Cause("learning rate too large", evidence, hint)
    hint = "lower weight_decay, or clip gradients with torch.nn.utils.clip_grad_norm_"
    return Cause("overflow in the optimizer", evidence, hint)


def _division(birth: Birth) -> Cause:
    found = described(birth)
    evidence = found.evidence if found is not None else f"{here(birth)}, and {birth.op} divides by 0"
    if birth.kind == "inf" and name_of(birth.output.dtype) in HALF:
        hint = "keep parameters and moments in f32, or use eps of 1e-4 or more"
        evidence += f"; squares of small gradients and a small eps are 0 in {name_of(birth.output.dtype)}"
        return Cause("underflow in the optimizer", evidence, hint)
    hint = "use eps above 0 in the optimizer (1e-8 is usual): a gradient of 0 gives 0 / 0"
    return Cause("division in the optimizer", evidence, hint)
