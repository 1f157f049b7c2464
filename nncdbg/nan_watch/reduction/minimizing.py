"""Delta debugging: find a minimal part of a list for which a test holds.

Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28 (2002): ddmin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def minimized(items: Sequence[T], test: Callable[[Sequence[T]], bool], most: int | None = None) -> list[T]:
    """Return a part of `items`, in order, from which no single item can be removed.

    `test` returns whether a part is sufficient; all items together must be.  After `most` tests, the smallest
    part so far is returned.
    """
    current, parts, left = list(items), 2, most
    while current:
        parts = min(parts, len(current))
        for candidate, following in _candidates(current, parts):
            if left is not None:
                if left <= 0:
                    return current
                left -= 1
            if test(candidate):
                current, parts = candidate, following
                break
        else:
            if parts >= len(current):
                return current
            parts *= 2
    return current


def _candidates(current: list[T], parts: int) -> list[tuple[list[T], int]]:
    """Return each part alone, then all but each part, with the number of parts to divide it into next."""
    edges = [len(current) * at // parts for at in range(parts + 1)]
    slices = [slice(a, b) for a, b in zip(edges, edges[1:], strict=False)]
    alone = [(current[each], 2) for each in slices] if parts > 1 else []
    without = [(current[: each.start] + current[each.stop :], max(parts - 1, 2)) for each in slices]
    # With two parts, removing one leaves the other.
    return alone if parts == 2 else [*alone, *without]
