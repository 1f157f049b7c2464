"""Find the part of two different chains of statements that differs, by experiment.

A chain of A and a chain of B should compute the same from the same values.  A value in A's chain is replaced
by one of B's chain.  If A's chain then gives B's result, all statements after the two values compute the
same, and the difference is in the statements before them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from nncdbg.engine.divergence.recomputation import Recomputation
from nncdbg.engine.divergence.written import Fixed, Key, Source, Written, WrittenResult

Content: TypeAlias = "Callable[[Source], Any]"
"""Returns the content of an operand."""

_EXPERIMENTS = 256
"""Maximum number of experiments per difference."""

_FEWEST = 16
"""Number of experiments that are made for tensors of any size."""

_WORK = 1 << 26
"""Maximum number of elements that all experiments compute."""

_LONGEST = 64
"""Maximum number of statements of a chain."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Statements that lead to `end`, in order of execution, with the contents of their operands."""

    statements: Sequence[Written]
    end: Source
    content: Content

    def before(self, source: Source) -> list[Written]:
        """Return the statements of the chain that lead to an operand."""
        inside = {written.key: written for written in self.statements}
        found: dict[Key, Written] = {}
        waiting = [source]
        while waiting:
            each = waiting.pop()
            if isinstance(each, WrittenResult) and each.key in inside and each.key not in found:
                found[each.key] = inside[each.key]
                waiting.extend(inside[each.key].sources)
        return sorted(found.values(), key=lambda written: written.tick)


@dataclass(frozen=True, slots=True)
class CutPoint:
    """A value that a chain reads or computes.  `reader` and `index` are those of an operand."""

    source: Source
    content: Any
    cost: int
    """The number of statements before it, without those that only reshape."""
    names: tuple[str, ...]
    reader: Written | None = None
    index: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """Values of A's and B's chain: what follows them is equal, and `left` and `right` lead to them."""

    a: CutPoint
    b: CutPoint
    left: list[Written]
    right: list[Written]


def smallest_cut(
    a: Chain, b: Chain, recomputation: Recomputation, same: Callable[[Any, Any], bool]
) -> Cut | None:
    """Return the cut with the fewest statements before it; None if no experiment gives B's result.

    `same` tests whether two contents are equal within the tolerance.
    """
    if max(len(a.statements), len(b.statements)) > _LONGEST:
        return None
    pairs = [
        (one, other, given)
        for one in _places(a)
        for other in _places(b)
        if (one.cost, other.cost) != (0, 0) or _same_kind(one, other)
        if (given := fitted(other.content, one.content)) is not None
    ]
    pairs.sort(key=lambda pair: (pair[0].cost + pair[1].cost, pair[0].names != pair[1].names))
    left = max(_FEWEST, min(_EXPERIMENTS, _WORK // max(1, _work(a.statements))))
    for one, other, given in pairs:
        if same(one.content, given):
            continue
        if not left:
            break
        left -= 1
        found = _with_value(a, one, given, recomputation)
        if _equal(found, b.content(b.end), same):
            return Cut(one, other, a.before(one.source), b.before(other.source))
    return None


def without_equal(
    a: Chain, b: Chain, left: list[Written], right: list[Written], same: Callable[[Any, Any], bool]
) -> tuple[list[Written], list[Written]]:
    """Return the statements without those that lead to equal values of both chains."""
    equal: list[set[Key]] = [set(), set()]
    if _work(left) * len(right) > _WORK:
        return left, right
    for one in left[:-1]:
        for other in right[:-1]:
            results = [WrittenResult(each.key, 0) for each in (one, other)]
            contents = [chain.content(result) for chain, result in zip((a, b), results, strict=True)]
            if np.size(contents[0]) > 1 and _equal(contents[0], contents[1], same):
                for chain, result, keys in zip((a, b), results, equal, strict=True):
                    keys |= {written.key for written in chain.before(result)}
    lists = [
        [each for each in statements if each.key not in keys]
        for statements, keys in zip((left, right), equal, strict=True)
    ]
    return lists[0], lists[1]


def _equal(x: Any, y: Any, same: Callable[[Any, Any], bool]) -> bool:
    """Return whether two tensors have the same elements, in any shape."""
    if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray):
        return False
    return x.size == y.size and same(x.reshape(-1), y.reshape(-1))


def _work(statements: Sequence[Written]) -> int:
    """Return the number of elements that the statements compute."""
    return sum(int(np.size(each)) for written in statements for each in written.contents)


def _same_kind(one: CutPoint, other: CutPoint) -> bool:
    return isinstance(one.source, Fixed) == isinstance(other.source, Fixed)


def _places(chain: Chain) -> Iterator[CutPoint]:
    """Yield the operands from outside of a chain, then its results, except the last one."""
    free = _reshaping(chain)
    inside = {written.key for written in chain.statements}
    known = set()
    for written in chain.statements:
        for index, source in enumerate(written.sources):
            outside = not isinstance(source, WrittenResult) or source.key not in inside
            if source is not None and outside and source not in known:
                known.add(source)
                operands = written.node.inputs
                name = operands[index] if index < len(operands) else ""
                yield CutPoint(source, chain.content(source), 0, (str(name),), written, index)
    for written in chain.statements:
        for index, name in enumerate(written.names):
            source = WrittenResult(written.key, index)
            if source != chain.end:
                cost = sum(each.key not in free for each in chain.before(source))
                yield CutPoint(source, chain.content(source), cost, (name,))


def _reshaping(chain: Chain) -> set[Key]:
    """Return the statements whose result has the elements of the first operand in the same order."""
    found = set()
    for written in chain.statements:
        if written.sources and written.contents:
            before, after = chain.content(written.sources[0]), chain.content(WrittenResult(written.key, 0))
            fits = isinstance(after, np.ndarray) and fitted(before, after)
            if isinstance(fits, np.ndarray) and np.array_equal(fits, after):
                found.add(written.key)
    return found


def fitted(content: Any, like: Any) -> Any:
    """Return a tensor in the shape of another one, transposed or reshaped; None if it does not fit."""
    if not isinstance(content, np.ndarray) or not isinstance(like, np.ndarray):
        return None
    if content.size != like.size or content.dtype.kind != like.dtype.kind or content.dtype.hasobject:
        return None
    if content.ndim == like.ndim == 2 and content.shape != like.shape:
        return content.T if content.T.shape == like.shape else None
    return content.reshape(like.shape)


def _with_value(chain: Chain, place: CutPoint, given: Any, recomputation: Recomputation) -> Any:
    """Return the result of A's chain with another content of one value; None if a kernel fails."""
    changed: dict[Source, Any] = {place.source: given}
    for written in chain.statements:
        if isinstance(place.source, WrittenResult) and place.source.key == written.key:
            continue
        if not any(source in changed for source in written.sources if source is not None):
            continue
        if written.operands is None:
            return None
        like = [chain.content(source) for source in written.sources]
        operands = [
            changed.get(source, content) if source is not None else None
            for source, content in zip(written.sources, like, strict=True)
        ]
        found = recomputation.results(written.code, written.pc, operands, like)
        if found is None:
            return None
        changed |= {WrittenResult(written.key, index): each for index, each in enumerate(found)}
    return changed.get(chain.end)
