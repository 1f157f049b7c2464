"""What the statements that read the inputs require: sizes that fit, integers in range.

Sizes and integers that are not given are chosen so that the program runs.  `AbstractRun` finds the
requirements; the search changes sizes until the run reaches the end.  The choice is deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import gcd
from typing import Any, TypeAlias

from nncdbg import dtypes
from nncdbg.engine.inputs.abstract_run import AbstractRun, InputUse, Place, ValueFacts, known_content
from nncdbg.engine.ops.valid_integers import Integers
from nncdbg.ir.records import Array, Path, Program, TensorType

Size: TypeAlias = "str | tuple[str, int]"
"""A size that is not given: a symbol, or (input, axis) for ``?``."""

Draw: TypeAlias = Callable[[str, Integers | None], Array]
"""Generates the data of an input from the accepted integers, or from the default ones."""

_COMMON = (*range(2, 17), 24, 28, 32, 48, 64, 96, 128, 224, 256, 299, 384, 512)
"""Sizes to try in any program, besides the sizes in the failing statement."""

_LARGEST = 4096
"""The largest size to choose."""

_TRIED = 48
"""The most sizes to try for one failing statement."""

_BUDGET = 60_000
"""Statements of abstract runs in one search: a few seconds."""

_ROUNDS = 8
_DRAWS = 3


@dataclass(frozen=True, slots=True)
class Chosen:
    """Sizes with which the program runs, and for each size that had to change the reason."""

    sizes: Mapping[Size, int]
    reasons: Mapping[Size, str]


@dataclass(frozen=True, slots=True)
class Consumers:
    """The statements of a program; `line` returns a statement's line in its listing."""

    program: Program
    line: Callable[[Path, int], int]

    def sizes(
        self,
        types: Mapping[str, TensorType],
        given: Mapping[str, Any],
        known: Mapping[str, int],
        draw: Draw,
    ) -> Chosen:
        """Return sizes for the unknown ones in `types`, the types of the inputs that are not given.

        A size is 1 if that fits, or if no other size is found.  `given` holds the other inputs, `known` the
        given symbols; `draw` generates the data of an integer input.
        """
        unknown = list(_unknown(types, known))
        ones = dict.fromkeys(unknown, 1)
        if not unknown:
            return Chosen({}, {})
        drawn = {name: draw(name, None) for name, type_ in types.items() if _may_steer(type_)}
        search = _Search(self, types, {**given, **drawn}, known)
        sizes, reasons = search.improved(ones)
        return Chosen(sizes, reasons)

    def integers(
        self,
        types: Mapping[str, TensorType],
        given: Mapping[str, Any],
        known: Mapping[str, int],
        draw: Draw,
        others: Mapping[str, TensorType],
    ) -> dict[str, tuple[Integers, str]]:
        """Return the accepted integers of each input that is not given, and the statement that limits them.

        `types` has their types, `others` those of the other inputs that are not given; `draw` generates the
        data of one, on which later statements may depend.
        """
        found: dict[str, tuple[Integers, str]] = {}
        drawn = {name: draw(name, None) for name, type_ in types.items() if _may_steer(type_)}
        for _ in range(_DRAWS):
            facts = {
                **_facts_of(given),
                **{name: ValueFacts(type_) for name, type_ in {**others, **types}.items()},
                **_facts_of(drawn),
            }
            facts = {
                name: ValueFacts(fact.type, fact.data, frozenset({(name, 0)})) if name in types else fact
                for name, fact in facts.items()
            }
            uses = AbstractRun(self.program, known, _BUDGET).run(facts).uses
            accepted = {name: self._accepted(types[name], uses, name) for name in types}
            latest = {name: pair for name, pair in accepted.items() if pair is not None}
            if latest == found:
                break
            found = latest
            drawn = {
                name: draw(name, found[name][0] if name in found else None)
                for name, type_ in types.items()
                if _may_steer(type_)
            }
        return found

    def _accepted(
        self, type_: TensorType, uses: Sequence[InputUse], name: str
    ) -> tuple[Integers, str] | None:
        """Return the integers that all uses accept; if these exclude each other, those of the first use."""
        chosen: InputUse | None = None
        low, high = _limits(type_)
        for use in uses:
            if use.input != name:
                continue
            accepted = use.accepted
            if accepted.exact is not None:
                if type_.shape == (len(accepted.exact),) or (type_.shape == () and len(accepted.exact) == 1):
                    return accepted, self._reason(use.op, use.place)
                continue
            least, most = max(low, accepted.low), min(high, accepted.high)
            if least < most and (least, most) != (low, high):
                low, high = least, most
                chosen = use
        if chosen is None:
            return None
        return Integers(low, high), self._reason(chosen.op, chosen.place)

    def _reason(self, op: str, place: Place) -> str:
        return f"{op} line {self.line(*place)}"

    def fits(self, op: str, place: Place) -> str:
        """Return the reason for a chosen size."""
        return f"so that {self._reason(op, place)} fits"


@dataclass(slots=True)
class _Search:
    consumers: Consumers
    types: Mapping[str, TensorType]
    given: Mapping[str, Any]
    known: Mapping[str, int]
    spent: int = 0

    def improved(self, sizes: dict[Size, int]) -> tuple[dict[Size, int], dict[Size, str]]:
        """Return sizes with which the run reaches the program's end; the given ones if none are found."""
        best = dict(sizes)
        reasons: dict[Size, str] = {}
        run = self._run(best)
        for _ in range(_ROUNDS):
            failure = run.failure
            if failure is None:
                return best, reasons
            step = self._step(best, run)
            if step is None:
                break
            better, run = step
            why = self.consumers.fits(failure.op, failure.place)
            reasons.update({size: why for size in better if better[size] != best[size]})
            best = better
        return (best, reasons) if run.failure is None else (sizes, {})

    def _step(self, sizes: dict[Size, int], run: AbstractRun) -> tuple[dict[Size, int], AbstractRun] | None:
        """Return the smallest change with which the run passes the failing statement and gets furthest."""
        assert run.failure is not None
        best: tuple[dict[Size, int], AbstractRun] | None = None
        groups = list(_groups(list(sizes)))
        for number in _candidates(run.failure.numbers):
            for group in groups:
                if all(sizes[each] == number for each in group):
                    continue
                trial = {**sizes, **dict.fromkeys(group, number)}
                made = self._run(trial)
                if made.cut_short:
                    return best
                if made.failure is None:
                    return trial, made
                if made.steps > (best[1] if best else run).steps:
                    best = trial, made
        return best

    def _run(self, sizes: Mapping[Size, int]) -> AbstractRun:
        symbols = {name: number for name, number in sizes.items() if isinstance(name, str)}
        facts = _facts_of(self.given)
        for name, type_ in self.types.items():
            if name in facts:
                facts[name] = replace(facts[name], origins=frozenset({(name, 0)}))
                continue
            dims = []
            for axis, dim in enumerate(type_.shape or ()):
                known = self.known.get(dim, symbols.get(dim)) if isinstance(dim, str) else dim
                dims.append(sizes[name, axis] if dim is None else known)
            facts[name] = ValueFacts(TensorType(type_.dtype, tuple(dims)))
        run = AbstractRun(self.consumers.program, {**symbols, **self.known}, _BUDGET - self.spent)
        run.run(facts)
        self.spent += run.steps
        return run


def _unknown(types: Mapping[str, TensorType], known: Mapping[str, int]) -> Iterator[Size]:
    seen = set(known)
    for name, type_ in types.items():
        for axis, dim in enumerate(type_.shape or ()):
            if dim is None:
                yield name, axis
            elif isinstance(dim, str) and dim not in seen:
                seen.add(dim)
                yield dim


def _groups(sizes: list[Size]) -> Iterator[tuple[Size, ...]]:
    """Yield the sizes to change together: each alone, pairs, all."""
    yield from ((size,) for size in sizes)
    if 2 < len(sizes) <= 5:
        yield from combinations(sizes, 2)
    if len(sizes) > 1:
        yield tuple(sizes)


def _candidates(numbers: Iterable[int]) -> list[int]:
    """Return the sizes to try, smallest first; `numbers` are those of the failing statement."""
    shown = sorted(number for number in numbers if 1 < number <= _LARGEST * _LARGEST)[:16]
    likely = dict.fromkeys(shown)
    for first in shown:
        for second in shown:
            likely.setdefault(first // gcd(first, second))
    likely = dict.fromkeys(number for number in likely if 1 < number <= _LARGEST)
    return sorted(list(dict.fromkeys((*likely, *_COMMON)))[:_TRIED])


def _facts_of(arrays: Mapping[str, Any]) -> dict[str, ValueFacts]:
    return {name: known_content(array) for name, array in arrays.items()}


def _may_steer(type_: TensorType) -> bool:
    """Return whether the content of an input may be a shape, a count or a condition that decides sizes."""
    fixed = all(isinstance(size, int) for size in type_.shape or ())
    return fixed and len(type_.shape or ()) < 2 and (is_integer(type_) or type_.dtype == "bool")


def _limits(type_: TensorType) -> tuple[int, int]:
    if not is_integer(type_):
        return -(1 << 24), 1 << 24
    bits = int(type_.dtype[1:])
    return (-(1 << bits - 1), 1 << bits - 1) if type_.dtype[0] == "i" else (0, 1 << bits)


def is_integer(type_: TensorType) -> bool:
    """Return whether a type holds integers, bool not included."""
    return type_.dtype in dtypes.INTEGERS
