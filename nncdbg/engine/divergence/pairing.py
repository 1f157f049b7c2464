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

import hashlib
import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nncdbg.comparison.report import Place
from nncdbg.dtypes import COMPLEX, FLOATS, INTEGERS, name_of
from nncdbg.engine.divergence.sides import Fixed, ProgramInput, RunTrace, Source, Written, WrittenResult
from nncdbg.engine.divergence.statement_differences import attributes_of
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import version_of
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import Inline

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


Operand: TypeAlias = "tuple[Any, ...]"
"""("result", unit, index), ("given", name), ("fixed", digest, elements) or ("none",)."""


@dataclass(slots=True)
class Unit:
    """A statement at its first visit.  `form` is its op, and the kind and shape of each result."""

    number: int
    place: Place
    op: str
    names: tuple[str, ...]
    form: tuple[Any, ...]
    attributes: Any
    operands: tuple[Operand, ...]
    kernel: bool
    """False for control flow and calls."""
    commutative: bool
    meaning: str = ""
    """A digest of everything that the results are computed from; empty if that is unknown."""
    skeleton: str = ""
    """Like `meaning`, with the shapes of constants in place of their elements."""
    readers: list[tuple[int, int]] = field(default_factory=list)
    """(unit, position of the operand) of each statement that reads a result."""
    output: int | None = None
    """The index of the program output that the statement gives."""

    @property
    def alias(self) -> str:
        """Return the name of the result; for a tensor that onnxruntime quantized, the original name."""
        return self.names[0].removesuffix("_DequantizeLinear_Output") if self.names else ""


@dataclass(slots=True)
class RunUnits:
    """The statements of a run in order of execution, with the readers of each input and constant."""

    all: list[Unit]
    of_input: dict[str, list[tuple[int, int]]]
    of_constant: dict[str, list[tuple[int, int]]]
    names: set[str] = field(default_factory=set)
    """The aliases of all units."""


def units_of(trace: RunTrace, input_names: Mapping[str, str]) -> RunUnits:
    """Return the units of a trace; `input_names` maps an input to its common name on both sides."""
    found = RunUnits([], {}, {})
    numbers: dict[Place, int] = {}
    for place, written in trace.first.items():
        number = numbers[place] = len(found.all)
        operands = tuple(_operand(source, numbers, input_names) for source in written.sources)
        unit = _unit(number, place, trace.at(written.key), operands)
        unit.meaning = _meaning(unit, found.all, whole=True)
        unit.skeleton = _meaning(unit, found.all, whole=False)
        found.all.append(unit)
        found.names.add(unit.alias)
        for position, operand in enumerate(operands):
            _register(found, operand, (number, position))
    for number, source in enumerate(trace.outputs):
        if isinstance(source, WrittenResult) and source.key[0] in numbers:
            found.all[numbers[source.key[0]]].output = number
    return found


def _register(units: RunUnits, operand: Operand, reader: tuple[int, int]) -> None:
    match operand:
        case ("result", number, _):
            units.all[number].readers.append(reader)
        case ("given", name):
            units.of_input.setdefault(name, []).append(reader)
        case ("fixed", digest, _):
            units.of_constant.setdefault(digest, []).append(reader)


def _unit(number: int, place: Place, written: Written, operands: tuple[Operand, ...]) -> Unit:
    kernel = written.operands is not None
    op = "@" if written.node.kind is Kind.CALL else written.node.op
    return Unit(
        number,
        place,
        op,
        written.names,
        (op, *map(form_of, written.contents)),
        _digest_of(attributes_of(written)) if kernel else None,
        operands,
        kernel,
        commutative(written),
    )


def commutative(written: Written) -> bool:
    """Return whether a statement's operands can be swapped."""
    declared = lookup(written.node.op, version_of(written.node.op, written.code.opsets))
    return declared is not None and declared.commutative


def form_of(content: Any) -> Any:
    """Return the element kind and shape of a tensor, or the kind of another content."""
    if not isinstance(content, (np.ndarray, np.generic)):
        return type(content).__name__
    name = name_of(content.dtype)
    for kind in (FLOATS, INTEGERS, COMPLEX):
        if name in kind:
            return sorted(kind)[0], content.shape
    return name, content.shape


def _operand(source: Source, numbers: Mapping[Place, int], input_names: Mapping[str, str]) -> Operand:
    match source:
        case WrittenResult(key, index):
            return ("result", numbers[key[0]], index) if key[0] in numbers else ("none",)
        case ProgramInput(name):
            return ("given", input_names.get(name, name))
        case Fixed(content):
            return ("fixed", _digest_of(content), int(np.size(content)))
    return ("none",)


def _meaning(unit: Unit, before: Sequence[Unit], *, whole: bool) -> str:
    """Return a digest that is equal for equal computations on equal inputs and, if `whole`, constants."""
    if not unit.kernel:
        return ""
    parts = [unit.op, unit.attributes, str(unit.form)]
    for operand in unit.operands:
        if operand[0] == "result":
            producer = before[operand[1]]
            inner = producer.meaning if whole else producer.skeleton
            if not inner:
                return ""
            operand = ("result", inner, operand[2])
        elif operand[0] == "fixed" and not whole:
            operand = ("fixed", operand[2])
        parts.append(str(operand))
    return _digest_of(tuple(parts))


def _digest_of(value: Any) -> str:
    digest = hashlib.blake2b(digest_size=12)
    _feed(digest, value)
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, Inline):
        value = value.array
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        for key in sorted(value):
            digest.update(f"{key}=".encode())
            _feed(digest, value[key])
    elif isinstance(value, (list, tuple)):
        digest.update(f"({len(value)}".encode())
        for item in value:
            _feed(digest, item)
    else:
        digest.update(f"{type(value).__name__}:{value};".encode())


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


def false_pairs(
    a: RunUnits, b: RunUnits, pairs: Pairs, differ: Set[Place], reshaped: Set[Place]
) -> list[Place]:
    """Return A's statements in `differ` that reach the same result in another way than their pairs.

    A pair is certain if name and type are equal, or op, type and operands.  Results of different shapes are
    no pair if they have the same elements (`reshaped`), or if the statements read different values.
    """
    of_b = {unit.place: unit for unit in b.all}
    pairs = dict(pairs)
    found = []
    for unit in a.all:
        if unit.place not in differ:
            continue
        other = of_b[pairs[unit.place][0]]
        same_shape = unit.form[1:] == other.form[1:]
        if unit.place in reshaped or not (same_shape or _reads_the_same(a, b, unit, other, pairs)):
            found.append(unit.place)
            del pairs[unit.place]
    differ = differ - {*found}
    for unit in _without_effect(a, pairs, differ):
        if unit.place not in differ:
            continue
        other = of_b[pairs[unit.place][0]]
        named = bool(unit.alias) and unit.alias == other.alias and unit.form[1:] == other.form[1:]
        if not named and not (unit.form == other.form and _reads_the_same(a, b, unit, other, pairs)):
            found.append(unit.place)
    return found


def _without_effect(a: RunUnits, pairs: Pairs, differ: Set[Place]) -> list[Unit]:
    """Return the statements with no reader that differs, directly or through other such statements."""
    found: dict[int, Unit] = {}
    for unit in reversed(a.all):
        after = {number for number, _ in unit.readers}
        agree = (
            number in found or (a.all[number].place in pairs and a.all[number].place not in differ)
            for number in after
        )
        if unit.output is None and after and all(agree):
            found[unit.number] = unit
    return list(found.values())


def _reads_the_same(a: RunUnits, b: RunUnits, one: Unit, other: Unit, pairs: Pairs) -> bool:
    def same(mine: Operand, theirs: Operand) -> bool:
        if mine[0] == "result" == theirs[0]:
            known = pairs.get(a.all[mine[1]].place)
            return known is not None and known[0] == b.all[theirs[1]].place and mine[2] == theirs[2]
        return mine[0] == theirs[0] and (mine[0] != "given" or mine == theirs)

    if len(one.operands) != len(other.operands):
        return False
    orders = permutations(other.operands) if one.commutative and len(one.operands) == 2 else [other.operands]
    return any(all(map(same, one.operands, order)) for order in orders)
