"""Delta debugging: the smallest part of a list for which a test still holds.

Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28 (2002): ddmin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def minimized(items: Sequence[T], test: Callable[[Sequence[T]], bool], most: int | None = None) -> list[T]:
    """A part of `items`, in their order, of which no single one can be left out.

    `test` says whether a part will do; all of them are known to.  After `most` tests the best so far is
    given.
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
    """One part alone, then all but one, each with how finely to divide it if it will do."""
    edges = [len(current) * at // parts for at in range(parts + 1)]
    slices = [slice(a, b) for a, b in zip(edges, edges[1:], strict=False)]
    alone = [(current[each], 2) for each in slices] if parts > 1 else []
    without = [(current[: each.start] + current[each.stop :], max(parts - 1, 2)) for each in slices]
    # Of two parts, all but one is the other one.
    return alone if parts == 2 else [*alone, *without]
