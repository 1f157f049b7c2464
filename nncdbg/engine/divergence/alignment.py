"""Which statement of one program is which of another, where names and places differ.

By name first: values of one name, op and shape.  What is left is matched by position: the
heaviest common subsequence of the statements in order of execution, in which only statements of
one op, one shape and one kind of element may pair, and a like ending of the names weighs more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nncdbg.engine.divergence.side import Side
from nncdbg.engine.divergence.written import Place, Written
from nncdbg.engine.dtypes import COMPLEX, FLOATS, INTEGERS, name_of

_LARGEST = 6_000
"""Statements of each side up to which positions are aligned as a whole; more are taken in stretches."""

_TAIL = 3
"""Parts at the end of a name that are compared."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A statement at its first execution; `signature` is what a counterpart must have too."""

    place: Place
    signature: tuple[Any, ...]
    names: tuple[str, ...]


Pairs: TypeAlias = "dict[Place, tuple[Place, str]]"
"""A's place to B's, and how they were matched: name or position."""


def survey(side: Side) -> list[Seen]:
    """Run a side to its end; its statements in order of their first execution."""
    found: dict[Place, Seen] = {}
    for written in side.all():
        place = written.key[0]
        if place not in found:
            found[place] = Seen(place, _signature(written), written.names)
    return list(found.values())


def _signature(written: Written) -> tuple[Any, ...]:
    op = "@" if written.node.op.startswith("@") else written.node.op
    return (op, *map(_form, written.contents))


def _form(content: Any) -> Any:
    if not isinstance(content, (np.ndarray, np.generic)):
        return type(content).__name__
    name = name_of(content.dtype)
    for kind in (FLOATS, INTEGERS, COMPLEX):
        if name in kind:
            return sorted(kind)[0], content.shape
    return name, content.shape


def align(these: Sequence[Seen], those: Sequence[Seen]) -> Pairs:
    """The counterparts of A's statements among B's, each of which is taken once."""
    pairs = _by_name(these, those)
    taken = {place for place, _ in pairs.values()}
    left = [seen for seen in these if seen.place not in pairs]
    right = [seen for seen in those if seen.place not in taken]
    for a, b in _stretches(left, right):
        pairs.update((one.place, (other.place, "position")) for one, other in _by_position(a, b))
    return pairs


def _by_name(these: Sequence[Seen], those: Sequence[Seen]) -> Pairs:
    known: dict[tuple[Any, ...], list[Place]] = {}
    for seen in reversed(those):
        known.setdefault((seen.signature, seen.names), []).append(seen.place)
    pairs: Pairs = {}
    for seen in these:
        candidates = known.get((seen.signature, seen.names))
        if candidates and seen.names:
            pairs[seen.place] = (candidates.pop(), "name")
    return pairs


def _stretches(these: Sequence[Seen], those: Sequence[Seen]) -> list[tuple[Sequence[Seen], Sequence[Seen]]]:
    """Both cut into as many parts, so that no part is too long to be aligned."""
    count = -(-max(len(these), len(those), 1) // _LARGEST)
    cuts = [(len(these) * i // count, len(those) * i // count) for i in range(count + 1)]
    return [(these[a:c], those[b:d]) for (a, b), (c, d) in zip(cuts, cuts[1:], strict=False)]


def _by_position(these: Sequence[Seen], those: Sequence[Seen]) -> list[tuple[Seen, Seen]]:
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


def _table(these: Sequence[Seen], those: Sequence[Seen]) -> npt.NDArray[np.int32]:
    """The weight of the heaviest common subsequence of every two beginnings (Needleman-Wunsch)."""
    numbers: dict[Any, int] = {}
    signature = [_numbers([seen.signature for seen in side], numbers) for side in (these, those)]
    tails = [
        [_numbers([_tail(seen, length) for seen in side], numbers) for side in (these, those)]
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


def _tail(seen: Seen, length: int) -> tuple[Any, ...]:
    """The last parts of its first name; of names with fewer, something that nothing else equals."""
    parts = re.split(r"[/.:]|__", seen.names[0]) if seen.names else []
    return ("tail", *parts[-length:]) if len(parts) >= length else ("no tail", id(seen))
