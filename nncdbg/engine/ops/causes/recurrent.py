"""Recurrent layers, where gates bound every sum, and the optimizers of training graphs."""

from __future__ import annotations

from typing import Any

import numpy as np

from nncdbg.engine.ops.causes import Birth, Cause
from nncdbg.engine.ops.causes.places import counted, spelled
from nncdbg.engine.ops.causes.summing import INFINITE, zero_times_infinity
from nncdbg.engine.ops.declaration import CauseRule
from nncdbg.ir.records import Array


def recurrent(birth: Birth) -> Cause | None:
    """The cause if infinities are in the products of x with W or of the initial state with R."""
    if birth.kind != "nan":
        return None
    for states, weights in ((0, 1), (5, 2)):
        a: Any = birth.inputs[states] if states < len(birth.inputs) else None
        b: Any = birth.inputs[weights]
        if a is None or not (np.isinf(a).any() or np.isinf(b).any()):
            continue
        words = f"{spelled(birth, states)} and {spelled(birth, weights)}"
        if _meet(a, b) or _meet(b, a):
            return zero_times_infinity(f"in the products of {words} an infinity is multiplied by 0")
        evidence = f"in the products of {words} infinities of both signs are added"
        return Cause("infinity minus infinity", evidence, INFINITE)
    return None


def _meet(a: Array, b: Array) -> bool:
    """Return True if `b` has a 0 in a feature (the last axis) where `a` has an infinity."""
    features = np.isinf(a).reshape(-1, a.shape[-1]).any(axis=0)
    return bool((b[..., features] == 0).any())


def _optimizer(operands: int) -> CauseRule:
    """Return the rule of an optimizer with `operands` per tensor, which takes the root of its last state.

    Its operands are R, T, then per tensor x, its gradient and the states; the last is a sum of squares.
    """

    def rule(birth: Birth) -> Cause | None:
        if birth.kind != "nan":
            return None
        tensors = (len(birth.inputs) - 2) // operands
        for number in range(len(birth.inputs) - tensors, len(birth.inputs)):
            state: Any = birth.inputs[number]
            if (state < 0).any():
                evidence = counted(birth, number, state < 0, "negative")
                hint = "a sum of squares is never negative: check how this state is initialized or loaded"
                return Cause("square root of a negative number", evidence, hint)
        return None

    return rule


adagrad, adam = _optimizer(3), _optimizer(4)
