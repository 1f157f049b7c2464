"""Statistics of a tensor: one record, the same in Python, JSON and listings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nncdbg.representation import RichOutput


def _number(number: float | None, digits: int) -> str:
    """Format to `digits` significant digits; integers in full up to 7 digits."""
    if number is None:
        return "-"
    if isinstance(number, int) and abs(number) < 10**7:
        return str(number)
    return f"{number:.{digits}g}"


@dataclass(frozen=True, slots=True)
class Summary(RichOutput):
    """Statistics of one tensor.

    `min`, `max`, `mean` and `std` (population, ddof 0) are over the finite elements, None without any;
    `min` and `max` of integers and bools are exact ints. `subnormal` counts non-zero elements below the
    dtype's smallest normal number. `count` is the number of all elements. Complex tensors are
    summarised by their absolute values; for strings only `count` is set.
    """

    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    nan: int
    posinf: int
    neginf: int
    zero: int
    subnormal: int
    count: int

    @property
    def finite(self) -> int:
        """Return the number of elements that are neither NaN nor infinite."""
        return self.count - self.nan - self.posinf - self.neginf

    def as_dict(self) -> dict[str, float | int | None]:
        """Return the fields by name, in order, as JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}

    def figures(self, digits: int = 4) -> list[tuple[str, str]]:
        """Return labels and numbers for a line: non-zero counts of NaN and infinities, then statistics.

        Without a finite element the line ends with the count of all elements: ``nan 12 of 12``.
        """
        counts = (("nan", self.nan), ("+inf", self.posinf), ("-inf", self.neginf))
        abnormal = [(label, str(count)) for label, count in counts if count]
        if abnormal and not self.finite:
            return [*abnormal, ("of", str(self.count))]
        statistics = (("min", self.min), ("mean", self.mean), ("max", self.max), ("std", self.std))
        return [*abnormal, *((label, _number(number, digits)) for label, number in statistics)]

    def __str__(self) -> str:
        return " ".join(f"{label} {number}" for label, number in self.figures())


class _Draft(RichOutput):
    """A summary under construction: the same slots, open to assignment."""

    __slots__ = Summary.__slots__

    def __init__(self, ends: Sequence[float | None], counts: Sequence[int], count: int) -> None:
        self.min, self.max, self.mean, self.std = ends
        self.nan, self.posinf, self.neginf, self.zero, self.subnormal = counts
        self.count = count


def build_summary(ends: Sequence[float | None], counts: Sequence[int], count: int) -> Summary:
    """Return ``Summary(*ends, *counts, count)`` in a third of the time.

    The `__init__` of a frozen dataclass calls `object.__setattr__` for each field, which costs more
    than the statistics of a small tensor.
    """
    draft: Any = _Draft(ends, counts, count)
    draft.__class__ = Summary
    return draft  # type: ignore[no-any-return]
