"""The order in which the lines of a recorded step ran, and the statements at which they began."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nncdbg.ir.records import Path, Program
from nncdbg.ir.search import same_file
from nncdbg.ir.source_trace import NO_VISIT, SourceTrace


@dataclass(frozen=True, slots=True)
class Arrival:
    """The beginning of a visit: its number, and that of the first statement of the visit or of its calls."""

    statement: int
    visit: int


class SourceOrder:
    """The order in which the lines of a recorded step ran."""

    def __init__(self, program: Program, trace: SourceTrace) -> None:
        self.trace = trace
        self.stacks: list[tuple[int, ...]] = []
        """The visits of each statement, outermost first."""
        self.arrivals: list[Arrival] = []
        """The beginnings of all visits, in their order."""
        self.places: list[tuple[Path, int]] = []
        """The block and position of each statement."""
        self._numbers: dict[tuple[Path, int], int] = {}
        """Each position of a block to the number of statements that run before it."""
        self._enter(program)
        seen: set[int] = set()
        for number, visit in enumerate(trace.statements):
            stack = self.stack_of(visit)
            self.stacks.append(stack)
            if not number:
                seen.update(stack[: trace.callers])
            for each in stack:
                if each not in seen:
                    seen.add(each)
                    self.arrivals.append(Arrival(number, each))
        self.last = {visit: number for number, stack in enumerate(self.stacks) for visit in stack}
        """Each visit to the last statement that it or its calls ran."""
        self.position = {each.visit: index for index, each in enumerate(self.arrivals)}
        """Each visit to its place among the arrivals."""

    def _enter(self, program: Program) -> None:
        stack = [((str(program.entry),), iter(enumerate(program.graph.nodes)))]
        while stack:
            path, nodes = stack[-1]
            for pc, node in nodes:
                self._numbers[path, pc] = len(self.places)
                if node.called is not None:
                    stack.append(((node.called,), iter(enumerate(program.graphs[node.called].nodes))))
                    break
                self.places.append((path, pc))
            else:
                count = len(program.graphs[str(path[0])].nodes)
                self._numbers[path, count] = len(self.places)
                stack.pop()

    def number(self, path: Path, pc: int) -> int:
        """Return the number of the statement that runs next at a position of a graph."""
        return self._numbers[path, pc]

    def arrivals_in(self, file: str) -> Iterator[Arrival]:
        """Yield the executions of the lines of a file in forward passes; for its name, see `same_file`."""
        for each in self.arrivals:
            of = self.trace.visits[each.visit].of
            if of == NO_VISIT and same_file(self.trace.file(each.visit), file):
                yield each

    def stack_of(self, visit: int) -> tuple[int, ...]:
        """Return a visit and those that called it, outermost first."""
        found = []
        while visit != NO_VISIT:
            found.append(visit)
            visit = self.caller(visit)
        return tuple(reversed(found))

    def caller(self, visit: int) -> int:
        """Return the visit that called the function of a visit."""
        return self.trace.calls[self.trace.visits[visit].call].caller

    def calls_around(self, visit: int) -> set[int]:
        """Return the call of a visit, and those around it."""
        return {self.trace.visits[each].call for each in self.stack_of(visit)}
