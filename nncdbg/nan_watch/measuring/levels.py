"""Magnitudes of values, and the operands that they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from nncdbg.by_identity import ByIdentity


class Level(NamedTuple):
    """The largest magnitude in a tensor, the smallest one on its path, and whether a constant caused it.

    The path follows the largest operand at each statement.  If a result is no larger than a constant among
    its operands, its magnitude comes from the constant: masks of -10000 or of the lowest number are
    intentional.
    """

    high: float
    base: float
    constant: bool


_ROUNDING = 1 + 2.0**-6
"""Largest ratio of a sum to its constant operand for which its magnitude comes from the constant."""


class Levels:
    """Levels of the live tensors, by identity; the tensors are referenced weakly.

    `high_of` returns the largest magnitude of a tensor that no statement computed.
    """

    def __init__(self, high_of: Callable[[Any], float | None]) -> None:
        self._high_of = high_of
        # NumPy scalars have no weak references: they are measured at each read.
        self._known: ByIdentity[Level] = ByIdentity(weak_only=True)

    def of(self, value: Any, constant: bool) -> Level | None:
        """Return the level of an operand; None if it has no finite number except 0."""
        known = self._known.get(value)
        if known is not None:
            return known
        high = self._high_of(value)
        if not high:
            return None
        level = Level(high, high, constant)
        self._known.set(value, level)
        return level

    def follow(self, result: Any, high: float, operands: Iterable[Level]) -> Level:
        """Return the level of a result with this largest magnitude and operands of these levels."""
        origin = origin_of(high, operands)
        if origin is None or not high:
            level = Level(high, high, False)
        else:
            level = Level(high, min(origin.base, high), origin.constant and high <= origin.high * _ROUNDING)
        self._known.set(result, level)
        return level


def origin_of(high: float, operands: Iterable[Level]) -> Level | None:
    """Return the operand that the largest magnitude of a result comes from."""
    known = list(operands)
    constants = [level for level in known if level.constant]
    meant = [level for level in constants if high <= level.high * _ROUNDING]
    others = [level for level in known if not level.constant]
    return max(meant or others or constants, key=lambda level: level.high, default=None)
