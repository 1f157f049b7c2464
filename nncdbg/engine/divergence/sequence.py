"""The heaviest common subsequence of two sequences of statements (Needleman-Wunsch)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nncdbg.engine.divergence.units import Unit

_LARGEST = 6_000
"""Maximum number of statements per side that are aligned at once; longer sequences are split."""

_TAIL = 3
"""Number of trailing parts of a name that are compared."""


def common_subsequence(these: Sequence[Unit], those: Sequence[Unit]) -> list[tuple[Unit, Unit]]:
    """Return pairs in order of execution: only equal forms pair; equal name endings weigh more."""
    return [pair for one, other in _stretches(these, those) for pair in _by_position(one, other)]


def _stretches(these: Sequence[Unit], those: Sequence[Unit]) -> list[tuple[Sequence[Unit], Sequence[Unit]]]:
    """Split both sequences into the same number of parts, each short enough to be aligned."""
    count = -(-max(len(these), len(those), 1) // _LARGEST)
    cuts = [(len(these) * i // count, len(those) * i // count) for i in range(count + 1)]
    return [(these[a:c], those[b:d]) for (a, b), (c, d) in zip(cuts, cuts[1:], strict=False)]


def _by_position(these: Sequence[Unit], those: Sequence[Unit]) -> list[tuple[Unit, Unit]]:
    if not these or not those:
        return []
    best = _table(these, those)
    pairs = []
    i, j = len(these), len(those)
    while i and j:
        if best[i, j] == best[i - 1, j]:
            i -= 1
        elif best[i, j] == best[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((these[i], those[j]))
    return pairs[::-1]


def _table(these: Sequence[Unit], those: Sequence[Unit]) -> npt.NDArray[np.int32]:
    """Return the weight of the heaviest common subsequence for every pair of prefixes."""
    numbers: dict[Any, int] = {}
    signature = [_numbers([unit.form for unit in side], numbers) for side in (these, those)]
    tails = [
        [_numbers([_tail(unit, length) for unit in side], numbers) for side in (these, those)]
        for length in range(1, _TAIL + 1)
    ]
    best = np.zeros((len(these) + 1, len(those) + 1), np.int32)
    for i in range(len(these)):
        weight = np.full(len(those), 2, np.int32)
        for mine, other in tails:
            weight += 2 * (mine[i] == other)
        paired = np.where(signature[0][i] == signature[1], best[i, :-1] + weight, 0)
        np.maximum.accumulate(np.maximum(best[i, 1:], paired), out=best[i + 1, 1:])
    return best


def _numbers(items: Sequence[Any], known: dict[Any, int]) -> npt.NDArray[np.int64]:
    return np.array([known.setdefault(item, len(known)) for item in items], np.int64)


def _tail(unit: Unit, length: int) -> tuple[Any, ...]:
    """Return the last parts of its first name; a unique tuple if the name has fewer parts."""
    parts = re.split(r"[/.:]|__", unit.names[0]) if unit.names else []
    return ("tail", *parts[-length:]) if len(parts) >= length else ("no tail", id(unit))
