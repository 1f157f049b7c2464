"""Causes in a training step of PyTorch: in the forward pass, in the backward pass and in the optimizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nncdbg.engine.dtypes import name_of
from nncdbg.engine.ops.aten.names import EMPTY, base_name
from nncdbg.engine.ops.causes import Birth, Cause, Maker
from nncdbg.engine.ops.causes.numbers import ends, is_float, overflows, shown
from nncdbg.engine.ops.causes.places import count
from nncdbg.engine.ops.causes.summing import decimal
from nncdbg.engine.ops.causes.torch_operands import computed_in, with_numbers
from nncdbg.engine.ops.causes.training_backward import in_backward
from nncdbg.engine.ops.causes.training_forward import HALF, in_forward
from nncdbg.engine.ops.causes.training_optimizer import in_optimizer
from nncdbg.engine.text.counting import elements
from nncdbg.stats.inspection import bad


def cause(birth: Birth) -> Cause | None:
    """Return why an operator of PyTorch gave NaN or Inf; None if no rule explains it."""
    birth = with_numbers(birth)
    if base_name(birth.op) in EMPTY:
        return _uninitialized(birth)
    given = _given_number(birth) or _too_large_number(birth, computed_in(birth))
    if given is not None:
        return given
    found = in_optimizer(birth) or in_backward(birth) or in_forward(birth)
    # Some operators round a number to the type of their tensors first, others do not.
    return found or _too_large_number(birth, birth.output.dtype)


def _given_number(birth: Birth) -> Cause | None:
    """Return the cause for a NaN or Inf that is written in the program, as in ``fill_value=nan``."""
    if birth.graph.startswith("optimizer"):
        return None
    test = math.isnan if birth.kind == "nan" else math.isinf
    for key, value in birth.attributes.items():
        if isinstance(value, float) and test(value):
            hint = (
                "use a finite number: an infinity works as a mask only in torch.where and scores of softmax"
            )
            return Cause("bad parameter", f"{key} of {birth.op} is {value}", hint)
    return None


_NUMBERS = frozenset({"other", "self", "alpha", "beta", "value", "scalar", "exponent", "fill_value"})
"""Arguments that are a number in a formula."""


def _too_large_number(birth: Birth, dtype: np.dtype[Any]) -> Cause | None:
    """Return the cause for a number in the program that is infinite in a type; None if there is none."""
    if birth.graph.startswith("optimizer") or not is_float(birth.output):
        return None
    for key, value in birth.attributes.items():
        number = type(value) in (int, float) and key in _NUMBERS and math.isfinite(value)
        if number and overflows(decimal(value), dtype):
            name = "overflow of half precision" if name_of(dtype) in HALF else "bad parameter"
            evidence = f"{key} of {birth.op} is {shown(value)}, and {ends(dtype)}"
            return Cause(name, evidence, "use a smaller number, or f64")
    return None


def _uninitialized(birth: Birth) -> Cause:
    many = count(bad(birth.output, birth.kind))
    size = birth.output.size
    evidence = f"{elements(many, size)} read before {'it is' if many == 1 else 'they are'} written"
    return Cause("uninitialized read", evidence, "")


def is_legal(birth: Birth, made_by: Sequence[Maker]) -> bool:
    """Return whether infinities are intended: given as a number (``value=-inf``), or by definition.

    The numbers of an optimizer are its options, in which an infinity is a mistake.
    """
    if birth.graph.startswith("optimizer"):
        return False
    base = base_name(birth.op)
    numbers = [value for value in birth.attributes.values() if isinstance(value, float)]
    if any(math.isinf(value) for value in numbers):
        return True
    # Log probabilities of unreachable states; sums of exponentials of masked rows.
    return (base == "_ctc_loss" or base.startswith("_scaled_dot_product")) and birth.index > 0
