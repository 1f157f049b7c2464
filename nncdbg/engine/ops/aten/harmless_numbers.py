"""Operators with a number that cannot make a NaN or Inf: their results need not be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
"""The types of first arguments for which the rules hold."""

_LEAST, _MOST = 1e-6, 1e4
"""In each type of `FLOATS`, these are no 0 and no Inf: 0 times Inf and Inf over Inf are NaN."""


def _shrinks_product(number: float) -> bool:
    return _LEAST <= abs(number) <= 1


def _shrinks_quotient(number: float) -> bool:
    return 1 <= abs(number) <= _MOST


def _is_small_addend(number: float) -> bool:
    """Return whether adding a number to the largest float of any type in `FLOATS` gives this float again.

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
