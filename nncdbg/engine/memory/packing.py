"""Memory plans: offsets for every value of a program from the sizes that a run has shown, and their check.

Values are packed graph by graph, the largest first, each at the lowest offset that fits beside the
values that are live with it. A view shares the bytes of its source, and an elementwise op may overwrite
an operand that it reads last. The bytes of a called graph follow those of all its callers. A recursive
graph gets none, because it needs as many copies as it is deep.

A live range is from the statement that writes a value to the last one that reads it.  Times count the steps
of one graph and the blocks inside it, each statement once, in the order of the text. A statement reads at its
start and writes at its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

from nncdbg.comparison.launches import PlacedPlan, PlannedBuffer
from nncdbg.comparison.launches import ValueSite as Site
from nncdbg.dtypes import NUMPY
from nncdbg.engine.compilation.code import Code, last_uses, walk
from nncdbg.engine.execution.linking import LineOf
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import version_of
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import TensorType

Interval: TypeAlias = "tuple[int, int]"


@dataclass(frozen=True, slots=True)
class LiveRange:
    """`intervals` in the times of the graph; `definition` and `last` are pcs in the value's block.

    `definition` is -1 for a value that exists when the block begins; `last` is -1 if nothing reads it.
    """

    intervals: tuple[Interval, ...]
    definition: int
    last: int

    @property
    def begin(self) -> int:
        return self.intervals[0][0]

    @property
    def end(self) -> int:
        return self.intervals[-1][1]

    def meets(self, other: LiveRange) -> bool:
        return any(a <= d and c <= b for a, b in self.intervals for c, d in other.intervals)


class Times:
    """The times of the statements of the graph `code`, including its blocks.

    A statement reads at the start of its span and writes at the end; blocks and calls are between.
    """

    def __init__(self, code: Code) -> None:
        self.spans: dict[Code, list[Interval]] = {}
        self._clock = count(0, 2)
        stack = [self._visit(code)]
        while stack:
            inner = next(stack[-1], None)
            if inner is None:
                stack.pop()
            else:
                stack.append(self._visit(inner))
        self._end = next(self._clock)

    def _visit(self, code: Code) -> Iterator[Code]:
        spans: list[Interval] = []
        self.spans[code] = spans
        for pc in range(len(code.nodes) + 1):
            start = next(self._clock)
            yield from code.bodies.get(pc, ())
            spans.append((start, next(self._clock)))

    def range_of(self, code: Code, slot: int) -> LiveRange:
        """Return the live range of the value in a slot of a block."""
        definition, last = code.definition[slot], last_uses(code)[slot]
        spans = self.spans[code]
        if definition >= 0:
            begin = spans[definition][1]
            end = begin if last < 0 else self._last_read(code, slot, last)
            return LiveRange(((begin, end),), definition, last)
        parent = code.parent
        if parent is None:
            end = 0 if last < 0 else self._last_read(code, slot, last)
            return LiveRange(((-1, end),), -1, last)
        # A carried value: up to its last use, and from `next` to the next iteration or the end.
        around = self.spans[parent][int(code.path[-2])]
        end = around[0] + 1 if last < 0 else self._last_read(code, slot, last)
        return LiveRange(((around[0] + 1, end), (spans[-1][1], around[1] - 1)), -1, last)

    def _last_read(self, code: Code, slot: int, last: int) -> int:
        start, end = self.spans[code][last]
        inside = any(slot == outer for body in code.bodies.get(last, ()) for outer, _ in body.captures)
        called = last < len(code.nodes) and code.nodes[last].kind is Kind.CALL
        if not code.parent and last == len(code.nodes):
            # The graph's results outlive it.
            return self._end
        # A block or a call may read it any time up to its end.
        return end - 1 if inside or called else start


def lines_of(code: Code, slot: int, line: LineOf) -> tuple[int | None, int | None]:
    """Return the first and last line at which the value in a slot is live."""
    definition, last = code.definition[slot], last_uses(code)[slot]
    parent = code.parent
    if definition >= 0:
        begin = line(code, definition)
    elif parent is not None:
        begin = line(parent, int(code.path[-2]))
    else:
        begin = line(code, 0)
    loop = parent is not None and parent.nodes[int(code.path[-2])].kind is Kind.WHILE
    if definition < 0 and loop:
        # A carried value is also a result of the loop.
        return begin, line(code, len(code.nodes))
    if last < 0:
        return begin, begin
    bodies = code.bodies.get(last, ())
    if any(slot == outer for body in bodies for outer, _ in body.captures):
        return begin, line(bodies[-1], len(bodies[-1].nodes))
    return begin, line(code, last)


ALIGNMENT = 64


@dataclass(slots=True, eq=False)
class Buffer:
    """Values that share bytes; the first one is the root."""

    values: list[tuple[Code, int]]
    size: int
    live: list[LiveRange]
    views: list[bool] = field(default_factory=lambda: [False])
    """Whether each value is a view of the root's data, rather than overwriting it."""
    offset: int = -1

    def meets(self, other: Buffer) -> bool:
        return any(mine.meets(its) for mine in self.live for its in other.live)


def pack(
    codes: Iterable[Code],
    sizes: Mapping[Site, int],
    line: LineOf,
    *,
    reuse: bool = True,
    times: Callable[[Code], Times] = Times,
) -> PlacedPlan:
    """Plan the values with a size in `sizes` (bytes); without `reuse` no byte is assigned twice.

    `times` returns the times of a graph, which determine the live ranges.
    """
    roots = [code for code in codes if code.parent is None and code.formula is None]
    bases = _order(roots)
    places: dict[Site, PlannedBuffer] = {}
    ends: dict[str, int] = {}
    for name, callers in bases.items():
        base = max((ends[caller] for caller in callers), default=0)
        ends[name] = base
        for root in roots:
            if root.graph.name == name:
                buffers = _buffers(root, sizes, reuse, times(root))
                ends[name] = max(ends[name], _assign(buffers, base, reuse))
                places.update(_places(buffers, line))
    return PlacedPlan(places, ALIGNMENT, "nncdbg's plan")


def _order(roots: Iterable[Code]) -> dict[str, set[str]]:
    """Return the graphs that are not recursive, callers first, each with its callers."""
    calls: dict[str, set[str]] = {}
    for root in roots:
        # The forward graph of a `backward` line has another name in calls, and the places of its graph.
        called = {
            root.graphs[called].name
            for code in walk(root)
            for node in code.nodes
            if (called := node.called) is not None
        }
        calls.setdefault(root.graph.name, set()).update(called)
    callers = {name: {each for each, called in calls.items() if name in called} for name in calls}
    ordered: dict[str, set[str]] = {}
    while True:
        ready = [name for name in calls if name not in ordered and callers[name] <= ordered.keys()]
        if not ready:
            return ordered
        ordered.update((name, callers[name]) for name in ready)


def _buffers(root: Code, sizes: Mapping[Site, int], reuse: bool, times: Times) -> list[Buffer]:
    of: dict[tuple[Code, int], Buffer] = {}
    by_name: dict[Site, Buffer] = {}
    found: list[Buffer] = []
    for code in sorted(walk(root), key=lambda each: times.spans[each][0]):
        captured = {inner for _, inner in code.captures}
        for slot, name in enumerate(code.names):
            size = sizes.get((code.path, name))
            if size is None or not name or slot in captured:
                continue
            live = times.range_of(code, slot)
            # A state that is updated has its name, and so its place, before and after.
            buffer = by_name.get((code.path, name))
            if buffer is not None:
                live = _whole(live, code, times)
                buffer.views.append(False)
            elif reuse:
                buffer = _shared(code, slot, size, of, times)
            if buffer is None:
                found.append(buffer := Buffer([(code, slot)], size, [_whole(live, code, times)]))
            else:
                buffer.values.append((code, slot))
                buffer.live.append(live)
            of[code, slot] = by_name[code.path, name] = buffer
    return found


def _whole(live: LiveRange, code: Code, times: Times) -> LiveRange:
    """Extend the range to the start of the statement, which may write before it has read everything."""
    pc = live.definition
    if pc < 0 or pc in code.bodies or code.nodes[pc].kind is Kind.CALL:
        return live
    (_, end), start = live.intervals[0], times.spans[code][pc][0]
    return LiveRange(((start, end),), pc, live.last)


def _shared(
    code: Code, slot: int, size: int, of: Mapping[tuple[Code, int], Buffer], times: Times
) -> Buffer | None:
    """Return the buffer of an operand that the value may share."""
    pc = code.definition[slot]
    if pc < 0 or pc in code.bodies:
        return None
    op = lookup(code.nodes[pc].op, version_of(code.nodes[pc].op, code.opsets))
    for operand in code.operands[pc]:
        buffer = of.get((code, operand))
        if buffer is None or buffer.size != size or op is None:
            continue
        if code.names[operand] in code.definitions:
            continue  # An update of the state overwrites these bytes.
        if op.view and operand == code.operands[pc][0]:
            buffer.views.append(True)
            return buffer
        # Elementwise, and the bytes of the buffer are not read after the statement.
        dies = all(live.end <= times.spans[code][pc][0] for live in buffer.live)
        type_ = code.types.get(code.names[operand])
        same_type = type_ is not None and type_ == code.types.get(code.names[slot])
        if op.ufunc is not None and dies and same_type:
            buffer.views.append(False)
            return buffer
    return None


def _assign(buffers: list[Buffer], base: int, reuse: bool) -> int:
    """Assign an offset to each buffer; return the end of the assigned bytes."""
    end = base
    done: list[Buffer] = []
    for buffer in sorted(buffers, key=lambda each: -each.size) if reuse else buffers:
        offset = base
        neighbours = [other for other in done if not reuse or other.meets(buffer)]
        for other in sorted(neighbours, key=lambda each: each.offset):
            if other.offset >= offset + buffer.size:
                break
            offset = max(offset, _rounded(other.offset + other.size))
        buffer.offset = offset
        end = max(end, _rounded(offset + buffer.size))
        done.append(buffer)
    return end


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _places(buffers: Iterable[Buffer], line: LineOf) -> dict[Site, PlannedBuffer]:
    found: dict[Site, PlannedBuffer] = {}
    for buffer in buffers:
        root: Site | None = None
        for (code, slot), view in zip(buffer.values, buffer.views, strict=True):
            site = (code.path, code.names[slot])
            root = root if view and root is not None else site
            first, last = lines_of(code, slot, line)
            lives = (first, last) if first is not None and last is not None else None
            if site in found and lives is not None and (before := found[site].lives) is not None:
                lives = min(before[0], lives[0]), max(before[1], lives[1])
            found[site] = PlannedBuffer(buffer.offset, buffer.size, root, lives)
    return found


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
                known = code.types.get(name)
                size = place.size  # If the declared type is not concrete.
                if isinstance(known, TensorType) and known.concrete:
                    size = math.prod(int(each or 0) for each in known.shape or ()) * _itemsize(code, name)
                size = needed.get((code.path, name), size)
                yield PlannedValue(code, slot, place, size, times.range_of(code, slot))


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
