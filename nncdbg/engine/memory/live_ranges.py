"""Live ranges: from the statement that writes a value to the last one that reads it.

Times count the steps of one graph and the blocks inside it, each statement once, in the order of the
text. A statement reads at its start and writes at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.compilation.liveness import last_uses
from nncdbg.engine.execution.linking import LineOf
from nncdbg.ir.kinds import Kind

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
