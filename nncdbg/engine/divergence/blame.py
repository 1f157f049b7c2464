"""Determine whether a statement's own computation differs between two programs, and the cause.

A statement with different results is executed again: side A's kernel on side B's operands.  If that
gives side B's results, the difference comes from the operands.  Otherwise it comes from the statement,
or from ops without a counterpart between the statement and the values that both sides have.

The part of two chains that differs is found by experiment.  A chain of A and a chain of B should compute the
same from the same values.  A value in A's chain is replaced by one of B's chain.  If A's chain then gives B's
result, all statements after the two values compute the same, and the difference is in the statements before
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from nncdbg.comparison.measure import agree, measure
from nncdbg.comparison.report import NOWHERE, DifferenceCause, Key, Match, ValueSite
from nncdbg.comparison.tolerance import Tolerance
from nncdbg.dtypes import COMPLEX, FLOATS, name_of
from nncdbg.engine.divergence.pairing import commutative
from nncdbg.engine.divergence.recomputation import MISSING, Recomputation, Substitution
from nncdbg.engine.divergence.sides import (
    Fixed,
    ProgramInput,
    RunTrace,
    Source,
    Written,
    WrittenResult,
    site_of,
)
from nncdbg.engine.divergence.statement_differences import (
    NarrowCause,
    bad_on_one_side,
    cause_of_bad,
    cause_of_types,
    constant_operand,
    declared_differences,
    kernel_difference,
    operand_name,
    shown_statement,
)
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import version_of
from nncdbg.expression import spelled
from nncdbg.text.counting import counted

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
        if (one.cost, other.cost) != (0, 0)
        or isinstance(one.source, Fixed) == isinstance(other.source, Fixed)
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


CounterpartOf = Callable[[Key], "Key | None"]


@dataclass(frozen=True, slots=True)
class StatementVerdict:
    """`cause` if the statement's own computation differs; `tie` if a near tie changed a discrete result."""

    cause: DifferenceCause | None = None
    tie: bool = False


PROPAGATED = StatementVerdict()


@dataclass(slots=True)
class Blame:
    """Judges statements of `a` with results that differ from their counterparts in `b`.

    `inputs` maps A's inputs to B's.
    """

    a: RunTrace
    b: RunTrace
    counterpart: CounterpartOf
    counterpart_in_a: CounterpartOf
    inputs: Mapping[str, str]
    tolerance: Tolerance
    substitution: Substitution = field(init=False)
    recomputation: Recomputation = field(init=False)
    recomputation_b: Recomputation = field(init=False)

    def __post_init__(self) -> None:
        self.recomputation = Recomputation(self.a.side.debugger, self.tolerance)
        self.recomputation_b = Recomputation(self.b.side.debugger, self.tolerance)
        self.substitution = Substitution(self.a, self._result_b, self._input_b, self.recomputation)

    def _result_b(self, result: WrittenResult) -> Any:
        key = self.counterpart(result.key)
        if key is None or not self.b.has(WrittenResult(key, result.index)):
            return MISSING
        return self.b.content(key, result.index)

    def _input_b(self, name: str) -> Any:
        other = self.inputs.get(name)
        return MISSING if other is None else self.b.side.debugger.inputs[other]

    def judge(self, key: Key, match: Match) -> StatementVerdict:
        """Return the verdict on A's statement at `key`; `match` is one of its results."""
        other = self.counterpart(key)
        assert other is not None
        one, two = self.a.at(key), self.b.at(other)
        if one.operands is None or two.operands is None:
            return PROPAGATED
        mine, like = self.substitution.operands(one), self.a.operands(one)
        found = self.recomputation.results(one.code, one.pc, mine, like)
        significant = found is not None and self._apart(one, mine, found, two)
        theirs = self._in_order(one, two)[1]
        if one.node.op == two.node.op and len(theirs) == len(mine):
            run = partial(self.recomputation.changes, one, like)
            narrow = cause_of_types(one, two, (like, theirs), found if significant else None, run)
            if narrow is not None:
                return StatementVerdict(DifferenceCause(narrow[0], match.a, match.b, narrow[1], match))
        if found is not None and not significant:
            born = _born_on_one_side(one, two, like, theirs)
            if born is not None:
                return StatementVerdict(DifferenceCause(born[0], match.a, match.b, born[1], match))
            agree = all(self.same(*pair) for pair in zip(like, mine, strict=True))
            return StatementVerdict(tie=agree and is_discrete(one, two.contents))
        return StatementVerdict(self._located(one, two, mine, like, match))

    def judge_output(self, source: Source, other: Source, match: Match) -> StatementVerdict:
        """Return the verdict on a program output if the statements that give it are not paired."""
        mine, theirs = self.substitution.value(source), self.b.value(other)
        if self.same(mine, theirs):
            return PROPAGATED
        return StatementVerdict(self._wired(source, other, match))

    def same(self, x: Any, y: Any) -> bool:
        """Return whether two contents agree within the tolerance."""
        return agree(x, y, self.tolerance)

    def _apart(self, one: Written, operands: Sequence[Any], found: Sequence[Any], two: Written) -> bool:
        return self.recomputation.apart(one.code, one.pc, operands, found, two.contents).significant

    # -- causes --------------------------------------------------------------------------------

    def _located(
        self, one: Written, two: Written, mine: Sequence[Any], like: Sequence[Any], match: Match
    ) -> DifferenceCause:
        a, b = match.a, match.b
        if one.node.op != two.node.op:
            ends = [WrittenResult(each.key, 0) for each in (one, two)]
            if len(one.names) == len(two.names):
                ends = [WrittenResult(each.key, one.names.index(a.value)) for each in (one, two)]
            left = [*self._between_a(*one.sources), one]
            right = [*self._between_b(*two.sources), two]
            return self._of_chains(
                Chain(left, ends[0], self.substitution.value), Chain(right, ends[1], self.b.value), match
            )
        sources, theirs = self._in_order(one, two)
        if len(theirs) == len(mine):
            constants = [constant_operand(one.code, one.pc, index) for index in range(len(mine))]
            given = [
                each if constant is None else constant
                for each, constant in zip(theirs, constants, strict=True)
            ]
            found = self.recomputation.results(one.code, one.pc, given, like)
            alike = found is not None and not self._apart(one, given, found, two)
            if not alike:
                declared = declared_differences(
                    one, two, lambda: a, lambda: b, partial(self.same_form, one, two)
                )
                if declared:
                    worst = max(
                        declared, key=lambda each: (each.kind == "attribute", each.times_tolerance or 0)
                    )
                    return DifferenceCause(worst.kind, a, b, worst.text, match)
            for index, (x, y) in enumerate(zip(mine, theirs, strict=True)):
                if not self.same(x, y):
                    return self._operand(one, index, one.sources[index], sources[index], match)
        elif len(one.sources) != len(two.sources):
            text = f"{one.node.op} has {len(one.sources)} / {len(two.sources)} operands"
            return DifferenceCause("operands", a, b, text, match)
        return DifferenceCause("kernel", a, b, kernel_difference(one, two), match)

    def _in_order(self, one: Written, two: Written) -> tuple[list[Source], list[Any]]:
        """Return B's operands in A's order; operands of a commutative op may be swapped."""
        sources = list(two.sources)
        if len(sources) == len(one.sources) == 2 and commutative(one):
            swapped = sources[::-1]
            if self._likeness(one, swapped) > self._likeness(one, sources):
                sources = swapped
        return sources, [self.b.value(source) for source in sources]

    def _likeness(self, one: Written, sources: Sequence[Source]) -> int:
        return sum(
            type(mine) is type(other)
            and (
                not isinstance(mine, WrittenResult)
                or self.counterpart(mine.key) == getattr(other, "key", None)
            )
            for mine, other in zip(one.sources, sources, strict=True)
        )

    def _operand(
        self, one: Written, index: int, mine: Source, other: Source, match: Match
    ) -> DifferenceCause:
        """Return the cause if two statements compute the same from different operands."""
        if self._is_constant(self.a, mine) and self._is_constant(self.b, other):
            text = f"{operand_name(one, index)} of {one.node.op} differs"
            return DifferenceCause(
                "parameter", match.a, match.b, f"{text}: {self._distance(mine, other)}", match
            )
        return self._wired(mine, other, match)

    def _wired(self, mine: Source, other: Source, match: Match) -> DifferenceCause:
        """Return the cause if the operands or outputs `mine` and `other` should be the same."""
        left = Chain(self._between_a(mine), mine, self.substitution.value)
        return self._of_chains(left, Chain(self._between_b(other), other, self.b.value), match)

    def same_form(self, one: Written, two: Written) -> bool:
        """Return whether B's integers have the same effect as A's: if B's statement gives A's results."""
        sources, like = self._in_order(one, two)
        if len(like) != len(one.sources):
            return False
        given = [
            theirs
            if isinstance(theirs, np.ndarray) and theirs.dtype.kind in "iub" and isinstance(source, Fixed)
            else mine
            for source, mine, theirs in zip(sources, self.a.operands(one), like, strict=True)
        ]
        found = self.recomputation_b.results(two.code, two.pc, given, given)
        return found is not None and all(
            isinstance(x, np.ndarray) and x.shape == y.shape and bool(np.array_equal(x, y, equal_nan=True))
            for x, y in zip(found, self.a.at(one.key).contents, strict=True)
        )

    def _of_chains(self, a: Chain, b: Chain, match: Match) -> DifferenceCause:
        """Return the cause if two chains that should compute the same do not, as small as possible."""
        left, right = [*a.statements], [*b.statements]
        cut = smallest_cut(a, b, self.recomputation, self.same)
        if cut is not None:
            left, right = cut.left, cut.right
            mine, other = cut.a.source, cut.b.source
            if isinstance(mine, WrittenResult) and isinstance(other, WrittenResult):
                match = self._match_of(mine, other, match)
            if not left and not right and cut.a.reader is not None and cut.b.reader is not None:
                one, two = cut.a.reader, cut.b.reader
                found = self._operand(one, cut.a.index, mine, other, match)
                return replace(found, a=self._site(self.a, one), b=self._site(self.b, two))
        else:
            mine, other = a.end, b.end
        left, right = without_equal(a, b, left, right, self.same)
        if len(left) == len(right) == 1 and left[0].node.op == right[0].node.op:
            return self._located(
                left[0], right[0], self.substitution.operands(left[0]), self.a.operands(left[0]), match
            )
        if left and right:
            sites = self._site(self.a, left[0]), self._site(self.b, right[0])
            return DifferenceCause("replaced", *sites, f"{_ops(left)} / {_ops(right)}", match)
        if left:
            return DifferenceCause(
                "only_a", self._site(self.a, left[0]), None, f"only side A has {_ops(left)}", match
            )
        if right:
            return DifferenceCause(
                "only_b", None, self._site(self.b, right[0]), f"only side B has {_ops(right)}", match
            )
        text = f"{match.a.op or 'the output'} reads {_named(self.a, mine)} / {_named(self.b, other)}"
        return DifferenceCause("operands", match.a, match.b, text, match)

    def _match_of(self, mine: WrittenResult, other: WrittenResult, match: Match) -> Match:
        """Return the match of the values at a cut; `match` if they do not differ in the runs."""
        sites = [
            site_of(trace.side.debugger, trace.at(result.key), result.index)
            for trace, result in ((self.a, mine), (self.b, other))
        ]
        pair = fitted(self.b.value(other), self.a.value(mine))
        found = measure(sites[0], sites[1], match.way, (self.a.value(mine), pair), self.tolerance)
        return found if found.diverges else match

    def _between_a(self, *sources: Source) -> list[Written]:
        """Return A's statements without a counterpart that lead to operands, in order of execution."""
        keys = {key for source in sources for key in self.substitution.between(source)}
        return sorted(map(self.a.at, keys), key=lambda written: written.tick)

    def _between_b(self, *sources: Source) -> list[Written]:
        """Return B's statements without a counterpart that lead to operands, in order of execution."""
        found: dict[Key, Written] = {}
        waiting = [*sources]
        while waiting:
            each = waiting.pop()
            if not isinstance(each, WrittenResult) or each.key in found or each.key not in self.b:
                continue
            if self.counterpart_in_a(each.key) is None:
                found[each.key] = self.b.at(each.key)
                waiting.extend(found[each.key].sources)
        return sorted(found.values(), key=lambda written: written.tick)

    def _is_constant(self, trace: RunTrace, source: Source) -> bool:
        """Return whether an operand is computed from constants alone."""
        waiting, seen = [source], set()
        while waiting:
            each = waiting.pop()
            if isinstance(each, ProgramInput):
                return False
            if isinstance(each, WrittenResult) and each.key not in seen:
                seen.add(each.key)
                written = trace.at(each.key) if each.key in trace else None
                if written is None or written.operands is None:
                    return False
                waiting.extend(written.sources)
        return isinstance(source, (Fixed, WrittenResult))

    def _distance(self, mine: Source, other: Source) -> str:
        x, y = self.a.value(mine), self.b.value(other)
        match = measure(NOWHERE, NOWHERE, "place", (x, y), self.tolerance)
        if match.comparison is None or match.comparison.max_abs is None:
            return match.detail or "other elements"
        size = counted(np.size(x), "element")
        return f"max {match.comparison.max_abs:.3g}, {match.comparison.mismatched} of {size}"

    def _site(self, trace: RunTrace, written: Written) -> ValueSite:
        return site_of(trace.side.debugger, written, 0)


def _born_on_one_side(
    one: Written, two: Written, mine: Sequence[Any], theirs: Sequence[Any]
) -> NarrowCause | None:
    """Return why the results of one side have a NaN or Inf, and its operands do not; None if not so."""
    if len(mine) != len(theirs):
        return None
    for side, written, (other, own), results in (
        ("B", two, (mine, theirs), (one.contents, two.contents)),
        ("A", one, (theirs, mine), (two.contents, one.contents)),
    ):
        if any(bad_on_one_side(*pair).any() for pair in zip(other, own, strict=True)):
            continue
        for index, pair in enumerate(zip(*results, strict=False)):
            if bad_on_one_side(*pair).any():
                kind, text = cause_of_bad(written.code, written.pc, own, pair[1], index)
                return kind, f"on side {side}, {text}"
    return None


def is_discrete(written: Written, contents: Sequence[Any]) -> bool:
    """Return whether a small change of an operand can change a result by a large step."""
    op = lookup(written.node.op, version_of(written.node.op, written.code.opsets))
    if op is not None and op.jumps:
        return True
    tensors = [each for each in contents if isinstance(each, np.ndarray) and not each.dtype.hasobject]
    return any(name_of(each.dtype) not in FLOATS and name_of(each.dtype) not in COMPLEX for each in tensors)


def _ops(statements: Sequence[Written]) -> str:
    if len(statements) == 1:
        return shown_statement(statements[0])
    names = [written.node.op for written in statements]
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")


def _named(trace: RunTrace, source: Source) -> str:
    match source:
        case WrittenResult(key, index):
            return spelled(trace.at(key).names[index]) if key in trace else "another value"
        case ProgramInput(name):
            return spelled(name)
    return "a constant"
