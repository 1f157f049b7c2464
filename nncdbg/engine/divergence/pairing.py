"""Pair the statements of two programs, by what they compute and how they are connected.

1. Pair statements that compute the same from the same inputs and constants, and statements of one name
   that differ only in constants.
2. Pair statements with equal results, even of different ops, such as several ops fused into one.
3. Extend the pairs outwards, best candidate first: readers and producers of paired values, scored by op,
   shapes, attributes, constants, names, paired operands and readers.
4. Pair statements of one name and op, then of one name and type, then the heaviest common subsequence of the
   rest, without statements of unlike results; repeat 3 after each.
5. Pair two different ops between the same neighbors: one replaces the other.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from nncdbg.engine.divergence.sequence import common_subsequence
from nncdbg.engine.divergence.units import Operand, RunUnits, Unit
from nncdbg.engine.divergence.written import Place

Agree: TypeAlias = Callable[[Place, Place], bool]
"""Tests whether the results of A's and B's statement are equal within the tolerance, or alike."""

Pairs: TypeAlias = "dict[Place, tuple[Place, str]]"
"""A's place to (B's place, how they were paired)."""

_LEAST = 1.5
"""Minimum score of a pair."""

_MANY = 400
"""Maximum number of reader pairs that are all scored; beyond it, only readers in the same order are."""

_CLOSE = 64
"""Maximum number of the other side's statements that are compared by value with one statement."""

_IDENTIFYING = 8
"""Minimum number of elements for a constant to identify its reader."""


def paired(a: RunUnits, b: RunUnits, agree: Agree, alike: Agree) -> Pairs:
    """Return the counterparts of A's statements among B's; each is used once."""
    pairing = _Pairing(a, b, agree, alike)
    pairing.run()
    return {a.all[i].place: (b.all[j].place, way) for i, (j, way) in sorted(pairing.found.items())}


@dataclass(slots=True)
class _Pairing:
    a: RunUnits
    b: RunUnits
    agree: Agree
    alike: Agree
    found: dict[int, tuple[int, str]] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)
    """B's unit number to A's."""
    _heap: list[tuple[float, int, int]] = field(default_factory=list)

    def run(self) -> None:
        self._by_meaning()
        self._by_value()
        self._from_ends()
        self._outwards()
        self._by_name()
        self._outwards()
        for one, other in common_subsequence(self._left(self.a), self._left_b()):
            if self._score(one, other) >= _LEAST and self.alike(one.place, other.place):
                self._accept(one, other, "position")
        self._outwards()
        self._replaced()

    def _left(self, units: RunUnits) -> list[Unit]:
        return [unit for unit in units.all if unit.number not in self.found]

    def _left_b(self) -> list[Unit]:
        return [unit for unit in self.b.all if unit.number not in self.taken]

    def _accept(self, one: Unit, other: Unit, way: str) -> None:
        self.found[one.number] = other.number, way
        self.taken[other.number] = one.number
        for each in self._neighbors(one, other):
            self._push(*each)

    # -- by meaning ----------------------------------------------------------------------------

    def _by_meaning(self) -> None:
        self._by_key(lambda unit: (unit.meaning, unit.names))
        # If two statements have swapped weights, their names decide.
        self._by_key(lambda unit: (unit.skeleton, unit.names))
        self._by_key(lambda unit: (unit.meaning,))

    def _by_key(self, key_of: Callable[[Unit], tuple[Any, ...]]) -> None:
        """Pair statements of equal keys in order; the first part of an unknown key is empty."""
        known: dict[tuple[Any, ...], list[Unit]] = {}
        for unit in reversed(self._left_b()):
            known.setdefault(key_of(unit), []).append(unit)
        for unit in self._left(self.a):
            key = key_of(unit)
            if key[0] and known.get(key):
                self._accept(unit, known[key].pop(), "structure")

    # -- outwards ------------------------------------------------------------------------------

    def _from_ends(self) -> None:
        """Push candidates at the program's inputs, outputs and large constants."""
        readers = [(self.a.of_input, self.b.of_input), (self.a.of_constant, self.b.of_constant)]
        for mine, other in readers:
            for key in mine.keys() & other.keys():
                for each in self._readers(mine[key], other[key]):
                    self._push(*each)
        ends = {unit.output: unit for unit in self.b.all if unit.output is not None}
        for unit in self.a.all:
            if unit.output in ends:
                self._push(unit, ends[unit.output])

    def _neighbors(self, one: Unit, other: Unit) -> Iterator[tuple[Unit, Unit]]:
        yield from self._readers(one.readers, other.readers)
        for position, operand in enumerate(one.operands):
            if operand[0] == "result":
                for place, counterpart in enumerate(other.operands):
                    same = place == position or one.commutative
                    if same and counterpart[0] == "result":
                        yield self.a.all[operand[1]], self.b.all[counterpart[1]]

    def _readers(
        self, mine: list[tuple[int, int]], other: list[tuple[int, int]]
    ) -> Iterator[tuple[Unit, Unit]]:
        if len(mine) * len(other) > _MANY:
            other_of = {
                number: place for place, number in enumerate(dict.fromkeys(each for each, _ in other))
            }
            order = list(other_of)
            for place, number in enumerate(dict.fromkeys(each for each, _ in mine)):
                for near in order[max(0, place - 2) : place + 3]:
                    yield self.a.all[number], self.b.all[near]
            return
        for i, position in mine:
            for j, place in other:
                one, counterpart = self.a.all[i], self.b.all[j]
                if position == place or one.commutative:
                    yield one, counterpart

    def _push(self, one: Unit, other: Unit) -> None:
        if one.op != other.op or one.number in self.found or other.number in self.taken:
            return
        if self._fuses(one, other, self.a, self.b) or self._fuses(other, one, self.b, self.a):
            return
        score = self._score(one, other)
        if score >= _LEAST:
            heapq.heappush(self._heap, (-score, one.number, other.number))

    def _fuses(self, one: Unit, other: Unit, of_one: RunUnits, of_other: RunUnits) -> bool:
        """Return whether `other` has the name and type of a reader of `one`, and no statement that of `one`.

        It then is fused of `one` and the reader, such as a Conv with a folded BatchNormalization.
        """
        after = (of_one.all[number] for number, _ in one.readers)
        return one.alias not in of_other.names and any(
            unit.alias == other.alias != "" and unit.form[1:] == other.form[1:] for unit in after
        )

    def _outwards(self) -> None:
        while self._heap:
            score, i, j = heapq.heappop(self._heap)
            if i in self.found or j in self.taken:
                continue
            one, other = self.a.all[i], self.b.all[j]
            now = self._score(one, other)
            if now < -score - 1e-9:
                self._push(one, other)
                continue
            self._accept(one, other, "structure")

    # -- evidence ------------------------------------------------------------------------------

    def _score(self, one: Unit, other: Unit) -> float:
        score = 3.0 * (bool(one.names) and one.names == other.names)
        score += 2.0 * (one.form == other.form) + 1.0 * bool(one.attributes == other.attributes)
        score += self._operands(one, other) + self._read_alike(one, other)
        score += 2.0 * (one.output is not None and one.output == other.output)
        return score + 0.5 * (1 - abs(one.number / len(self.a.all) - other.number / len(self.b.all)))

    def _operands(self, one: Unit, other: Unit) -> float:
        """Score the operands from -2 (all from elsewhere) to 3 (all the same)."""
        if not one.operands or len(one.operands) != len(other.operands):
            return 0.0
        orders = [other.operands]
        if one.commutative:
            orders.append(other.operands[::-1])
        sums = [
            sum(self._same_operand(*pair) for pair in zip(one.operands, order, strict=True))
            for order in orders
        ]
        return max(sums) / len(one.operands)

    def _same_operand(self, mine: Operand, other: Operand) -> float:
        if mine[0] != other[0]:
            return -0.5
        if mine[0] == "result":
            known = self.found.get(mine[1])
            if known is not None:
                return 3.0 if known[0] == other[1] and mine[2] == other[2] else -2.0
            return -2.0 if other[1] in self.taken else 0.0
        if mine == other:
            return 3.0 if mine[0] == "given" or (mine[0] == "fixed" and mine[2] >= _IDENTIFYING) else 1.0
        return -2.0 if mine[0] == "given" else 0.0

    def _read_alike(self, one: Unit, other: Unit) -> float:
        """Score the readers from 0 to 2: the share that are pairs and read at the same position."""
        if not one.readers or not other.readers:
            return 0.0
        others = set(other.readers)
        alike = sum(
            1
            for number, position in one.readers
            if (known := self.found.get(number)) is not None and (known[0], position) in others
        )
        return 2.0 * alike / max(len(one.readers), len(other.readers))

    # -- names, values, replaced ops -------------------------------------------------------------

    def _by_name(self) -> None:
        known = {(unit.op, unit.names): unit for unit in self._left_b() if unit.names}
        for unit in self._left(self.a):
            other = known.pop((unit.op, unit.names), None)
            if other is not None and self._score(unit, other) >= _LEAST:
                self._accept(unit, other, "name")
        if self._has_same_names():
            of_type = {(unit.alias, *unit.form[1:]): unit for unit in self._left_b() if unit.alias}
            for unit in self._left(self.a):
                other = of_type.pop((unit.alias, *unit.form[1:]), None)
                if other is not None and unit.kernel and other.kernel:
                    self._accept(unit, other, "name")

    def _has_same_names(self) -> bool:
        """Return whether most pairs have equal names: numbered names of two exporters are unrelated."""
        pairs = [(self.a.all[i].names, self.b.all[j].names) for i, (j, _) in self.found.items()]
        return 2 * sum(mine == other for mine, other in pairs) >= len(pairs)

    def _by_value(self) -> None:
        """Pair statements with equal results: of one op first, then of any."""
        for same_op in (True, False):
            known: dict[tuple[object, ...], list[Unit]] = {}
            for unit in self._left_b():
                if unit.kernel:
                    known.setdefault(unit.form[0 if same_op else 1 :], []).append(unit)
            for unit in self._left(self.a):
                candidates = known.get(unit.form[0 if same_op else 1 :], ()) if unit.kernel else ()
                for other in _near(unit, candidates):
                    if other.number not in self.taken and self.agree(unit.place, other.place):
                        self._accept(unit, other, "value")
                        break

    def _replaced(self) -> None:
        for unit in self._left(self.a):
            for other in self._left_b() if unit.kernel else ():
                near = other.kernel and self._between_the_same(unit, other)
                if near:
                    self._accept(unit, other, "structure")
                    break

    def _between_the_same(self, one: Unit, other: Unit) -> bool:
        """Return whether both read a paired value, and are read by a pair or give the same output.

        Their results have one type: results of other types are those of longer chains.
        """
        if one.form[1:] != other.form[1:]:
            return False
        reads = any(
            self._same_operand(mine, counterpart) == 3.0
            for mine in one.operands
            for counterpart in other.operands
        )
        ends = one.output is not None and one.output == other.output
        return reads and (ends or self._read_alike(one, other) > 0)


def _near(unit: Unit, candidates: Iterable[Unit]) -> list[Unit]:
    """Return a few candidates: those of the same name first, then the nearest in order of execution."""

    def rank(other: Unit) -> tuple[bool, int]:
        return other.names != unit.names, abs(other.number - unit.number)

    return heapq.nsmallest(_CLOSE, candidates, key=rank)
