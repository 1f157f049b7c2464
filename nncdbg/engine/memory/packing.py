"""A memory planner: offsets for every value of a program, from the sizes that a run has shown.

Values are packed graph by graph, the largest first, each at the lowest offset that fits beside the
values that are live with it. A view shares the bytes of its source, and an elementwise op may overwrite
an operand that it reads last. The bytes of a called graph follow those of all its callers. A recursive
graph gets none, because it needs as many copies as it is deep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from nncdbg.engine.compilation.code import Code, walk
from nncdbg.engine.execution.linking import LineOf
from nncdbg.engine.memory.live_ranges import LiveRange, Times, lines_of
from nncdbg.engine.memory.plan_file import PlacedPlan, PlannedBuffer, Site
from nncdbg.engine.ops import Op, lookup
from nncdbg.engine.ops.schema import version_of
from nncdbg.ir.kinds import Kind

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
        if _elementwise(op) and _dies_at(buffer, code, pc, times) and _same_type(code, operand, slot):
            buffer.views.append(False)
            return buffer
    return None


def _elementwise(op: Op) -> bool:
    return op.ufunc is not None


def _same_type(code: Code, one: int, other: int) -> bool:
    known = [code.types.get(code.names[slot]) for slot in (one, other)]
    return known[0] is not None and known[0] == known[1]


def _dies_at(buffer: Buffer, code: Code, pc: int, times: Times) -> bool:
    """Whether the bytes of a buffer are not read after the statement at `pc`."""
    return all(live.end <= times.spans[code][pc][0] for live in buffer.live)


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
