"""A series of numbers as one line of bars."""

from __future__ import annotations

import math
from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"
"""Bars from the smallest to the largest number."""

NOT_FINITE = "×"
"""In place of a bar without a finite number."""


def sparkline(steps: Sequence[int], numbers: Sequence[float], width: int) -> str:
    """Return bars for numbers at ascending steps: at most `width`, each for an equal share of the steps.

    A bar has the mean of the finite numbers in its share, and is × without one; a share without steps
    repeats the bar before.  The lowest bar is the smallest of these means, the highest the largest.
    """
    if not steps:
        return ""
    first, last = steps[0], steps[-1]
    width = min(width, last - first + 1)
    shares: list[list[float]] = [[] for _ in range(width)]
    for step, number in zip(steps, numbers, strict=True):
        shares[(step - first) * width // (last - first + 1)].append(number)
    means: list[float] = []
    for share in shares:
        finite = [number for number in share if math.isfinite(number)]
        missing = math.nan if share or not means else means[-1]
        means.append(math.fsum(number / len(finite) for number in finite) if finite else missing)
    known = [mean for mean in means if math.isfinite(mean)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    return "".join(_bar(mean, low, high) for mean in means)


def _bar(number: float, low: float, high: float) -> str:
    if not math.isfinite(number):
        return NOT_FINITE
    # Halves, because the difference of two large numbers may overflow.
    share = (number / 2 - low / 2) / (high / 2 - low / 2) if high / 2 > low / 2 else 0.0
    return BARS[min(len(BARS) - 1, int(share * len(BARS)))]
