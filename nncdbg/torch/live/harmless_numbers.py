"""Operators with a number that cannot make a NaN or Inf: their results need not be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

_LEAST, _MOST = 1e-6, 1e4
"""In each type of `_FLOATS`, these are no 0 and no Inf: 0 times Inf and Inf over Inf are NaN."""

_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


def _shrinks_product(number: float) -> bool:
    return _LEAST <= abs(number) <= 1


def _shrinks_quotient(number: float) -> bool:
    return 1 <= abs(number) <= _MOST


def _is_small_addend(number: float) -> bool:
    """Return whether adding a number to the largest float of any type in `_FLOATS` gives this float again.

    The distance of the two largest floats is at least 32, that of float16.
    """
    return abs(number) <= 1


_RULES: dict[str, Callable[[float], bool]] = {
    "mul": _shrinks_product,
    "div": _shrinks_quotient,
    "add": _is_small_addend,
    "sub": _is_small_addend,
}

HARMLESS: Mapping[str, Callable[[float], bool]] = {
    name: rule
    for base, rule in _RULES.items()
    for name in (
        *(f"aten.{base}{place}.{overload}" for place in ("", "_") for overload in ("Tensor", "Scalar")),
        *(f"aten._foreach_{base}{place}.Scalar" for place in ("", "_")),
    )
}
"""The operators by name, and whether a number as second argument makes no NaN and no Inf."""


def is_harmless(rule: Callable[[float], bool], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a result can have a NaN or Inf only where the first argument has the same value."""
    if kwargs or len(args) != 2 or args[1].__class__ not in (float, int) or not rule(args[1]):
        return False
    tensors = args[0] if isinstance(args[0], (list, tuple)) else args[:1]
    return all(isinstance(each, torch.Tensor) and each.dtype in _FLOATS for each in tensors)
