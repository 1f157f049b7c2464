"""Static checks of a plan of offsets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from nncdbg.engine.compilation.code import Code, walk
from nncdbg.engine.dtypes import NUMPY
from nncdbg.engine.execution.linking import LineOf
from nncdbg.engine.memory.live_ranges import LiveRange, Times, lines_of
from nncdbg.engine.memory.plan_file import PlacedPlan, PlannedBuffer, Site
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import version_of
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import TensorType

_MIXING = frozenset(
    f"nncdbg.engine.ops.{family}"
    for family in (
        "convolution",
        "indexing",
        "matrix",
        "movement",
        "ordering",
        "pooling",
        "recurrent",
        "resize",
    )
)
"""Families of ops in which a result element depends on operand elements at other positions."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedValue:
    """A value of a block and its place; `size` in bytes is computed, declared, or taken from the plan."""

    code: Code
    slot: int
    place: PlannedBuffer
    size: int
    live: LiveRange

    @property
    def name(self) -> str:
        return self.code.names[self.slot]

    @property
    def end(self) -> int:
        return self.place.offset + self.size


@dataclass(frozen=True, slots=True, eq=False)
class PlanProblem:
    """A problem of a plan: `kind` is small, misaligned, outlived, overlap or in place.

    `other` is the second value at the same bytes. `first` and `last` delimit the shared bytes. For `small`
    they are the bytes needed and planned, for `misaligned` the offset and the alignment, for `outlived` the
    planned and the actual last line.
    """

    kind: str
    value: PlannedValue
    first: int
    last: int
    other: PlannedValue | None = None


def problems(
    plan: PlacedPlan,
    codes: Iterable[Code],
    needed: Mapping[Site, int],
    line: LineOf,
) -> Iterator[PlanProblem]:
    """Yield the problems of a plan, graph by graph, in the order of the text.

    `codes` are the compiled blocks of the program. `needed` is the size in bytes of each computed value.
    """
    for root in codes:
        if root.parent is None and root.formula is None:
            found = list(_planned_values(plan, root, needed))
            for value in found:
                yield from _of_one(plan, value, line)
            yield from _overlaps(found)


def _planned_values(plan: PlacedPlan, root: Code, needed: Mapping[Site, int]) -> Iterator[PlannedValue]:
    times = Times(root)
    for code in sorted(walk(root), key=lambda each: times.spans[each][0]):
        captured = {inner for _, inner in code.captures}
        for slot, name in enumerate(code.names):
            place = plan.places.get((code.path, name)) if name and slot not in captured else None
            if place is not None:
                size = needed.get((code.path, name), _declared_size(code, name, place))
                yield PlannedValue(code, slot, place, size, times.range_of(code, slot))


def _declared_size(code: Code, name: str, place: PlannedBuffer) -> int:
    """Return the size by the declared type of a value; the size in the plan if the type is not concrete."""
    known = code.types.get(name)
    if not isinstance(known, TensorType) or not known.concrete:
        return place.size
    return math.prod(int(size or 0) for size in known.shape or ()) * _itemsize(code, name)


def _itemsize(code: Code, name: str) -> int:
    known = code.types.get(name)
    return NUMPY[known.dtype].itemsize if isinstance(known, TensorType) else 1


def _of_one(plan: PlacedPlan, value: PlannedValue, line: LineOf) -> Iterator[PlanProblem]:
    place, site = value.place, (value.code.path, value.name)
    if value.size > place.size:
        yield PlanProblem("small", value, value.size, place.size)
    whole = place.root == site
    element = _itemsize(value.code, value.name)
    alignment = max(plan.alignment, element) if whole else element
    if alignment > 1 and place.offset % alignment:
        yield PlanProblem("misaligned", value, place.offset, alignment)
    if place.lives is not None:
        _, last = lines_of(value.code, value.slot, line)
        if last is not None and last > place.lives[1]:
            yield PlanProblem("outlived", value, place.lives[1], last)


def _overlaps(values: list[PlannedValue]) -> Iterator[PlanProblem]:
    """Yield pairs of values of one graph that share bytes while both are live."""
    found: list[tuple[tuple[int, int], PlanProblem]] = []
    standing: list[PlannedValue] = []
    for value in sorted(values, key=lambda each: each.place.offset):
        standing = [each for each in standing if each.end > value.place.offset]
        for other in standing:
            first, second = sorted((value, other), key=lambda each: each.live.begin)
            kind = _conflict(first, second) if value.size else None
            if kind is not None:
                shared = value.place.offset, min(value.end, other.end)
                moment = (first.live.begin, second.live.begin)
                found.append((moment, PlanProblem(kind, first, *shared, second)))
        standing.append(value)
    yield from (problem for _, problem in sorted(found, key=lambda pair: pair[0]))


def _conflict(first: PlannedValue, second: PlannedValue) -> str | None:
    if first.place.root == second.place.root:
        return None
    if first.live.meets(second.live):
        return None if _same_copy(first, second) else "overlap"
    code, pc = second.code, second.live.definition
    last_reader = first.code is code and first.live.last == pc >= 0
    if not last_reader or pc in code.bodies or code.nodes[pc].kind is Kind.CALL:
        return None
    return None if _may_be_in_place(first, second) else "in place"


def _same_copy(first: PlannedValue, second: PlannedValue) -> bool:
    """Whether `second` is a view of `first` at the same bytes that the plan does not declare as an alias."""
    code, pc = second.code, second.live.definition
    if pc < 0 or pc in code.bodies or code.nodes[pc].kind is Kind.CALL:
        return False
    op = lookup(code.nodes[pc].op, version_of(code.nodes[pc].op, code.opsets))
    return op is not None and op.view and code.nodes[pc].inputs[0] == first.name


def _may_be_in_place(first: PlannedValue, second: PlannedValue) -> bool:
    """Whether an op may write over its operand: same bytes, same element order."""
    if (first.place.offset, first.size) != (second.place.offset, second.size):
        return False
    code, node = second.code, second.code.nodes[second.live.definition]
    types = [each.code.types.get(each.name) for each in (first, second)]
    shapes = [type.shape for type in types if isinstance(type, TensorType) and type.concrete]
    op = lookup(node.op, version_of(node.op, code.opsets))
    if op is not None and op.view:
        return True
    if len(shapes) == 2 and shapes[0] != shapes[1]:
        return False
    return op is None or op.kernel is None or op.kernel.__module__ not in _MIXING
