"""How large values are, and how that came about along the way that led to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple
from weakref import ref


class Level(NamedTuple):
    """The largest magnitude in a tensor, the smallest such on the way to it, and whether it is a constant's.

    The way leads over the largest operand each time.  A result that is no larger than a constant among its
    operands has its size from there: masks of -10000 or of the lowest number are made so, and are meant.
    """

    high: float
    base: float
    constant: bool


_ROUNDING = 1 + 2.0**-6
"""How much larger than a constant a sum with it may be, and still have its size from there."""


class Levels:
    """Levels of the tensors that stand, by identity; none is kept alive by it.

    `high_of` gives the largest magnitude of one that no statement has made.
    """

    def __init__(self, high_of: Callable[[Any], float | None]) -> None:
        self._high_of = high_of
        self._known: dict[int, tuple[ref[Any], Level]] = {}

    def of(self, value: Any, constant: bool) -> Level | None:
        """The level of an operand; None if it has no finite number but 0."""
        reference, level = self._known.get(id(value), (None, None))
        if reference is not None and reference() is value:
            return level
        high = self._high_of(value)
        if not high:
            return None
        level = Level(high, high, constant)
        self._keep(value, level)
        return level

    def follow(self, result: Any, high: float, operands: Iterable[Level]) -> Level:
        """The level of a result with this largest magnitude, made of operands of these levels."""
        origin = origin_of(high, operands)
        if origin is None or not high:
            level = Level(high, high, False)
        else:
            level = Level(high, min(origin.base, high), origin.constant and high <= origin.high * _ROUNDING)
        self._keep(result, level)
        return level

    def _keep(self, value: Any, level: Level) -> None:
        try:
            self._known[id(value)] = ref(value, partial(self._forget, id(value))), level
        except TypeError:
            return  # A NumPy scalar cannot be referred to; it is looked at again where it is read.

    def _forget(self, key: int, reference: ref[Any]) -> None:
        if key in self._known and self._known[key][0] is reference:
            del self._known[key]


def origin_of(high: float, operands: Iterable[Level]) -> Level | None:
    """The operand from which a result with this largest magnitude has its size."""
    known = list(operands)
    constants = [level for level in known if level.constant]
    meant = [level for level in constants if high <= level.high * _ROUNDING]
    others = [level for level in known if not level.constant]
    return max(meant or others or constants, key=lambda level: level.high, default=None)
