"""How the user's source ran when a step was recorded: calls, executions of lines, and names of tensors.

A *visit* is one execution of one line in one call of a function.  A statement belongs to a visit; the visit
to its call; the call to the visit of the caller's line.  The statements are those that a run executes, in
their order, without calls of graphs.  A backward pass is a call too, of visits of the forward pass; so is an
update, with a visit for each parameter.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from nncdbg.ir.records import Path, Program

NO_VISIT = -1
"""In place of a visit: no line of the user's source ran."""

SourceFunction: TypeAlias = "tuple[str, str]"
"""The file and the qualified name of a function."""


@dataclass(frozen=True, slots=True)
class SourceCall:
    """A call of a function of the user, or the run of a module's code.

    `function` is the qualified name, such as `Block.forward` or `<module>`; "" if only the line is known.
    `caller` is the number of the visit that called it, `NO_VISIT` for the outermost call.
    """

    file: str
    function: str
    caller: int = NO_VISIT


@dataclass(frozen=True, slots=True)
class SourceVisit:
    """One execution of a line: the number of its call, and the line, from 1.

    `of` is the visit of the forward pass whose derivative a visit of a backward pass computes; `parameter` is
    the name of the parameter that a visit of an update is about.
    """

    call: int
    line: int
    of: int = NO_VISIT
    parameter: str = ""


@dataclass(frozen=True, slots=True)
class SourceName:
    """From before statement number `since` on, a name of a call holds the value `value`; "" for none.

    `name` is a local variable, or a path that the function uses: `self.cache`, `batch["image"]`, `outs[0]`.
    """

    call: int
    name: str
    since: int
    value: str


@dataclass(frozen=True)
class SourceTrace:
    """The trace of a recorded step: `statements` are the numbers of visits, one for each statement."""

    calls: Sequence[SourceCall] = ()
    visits: Sequence[SourceVisit] = ()
    statements: Sequence[int] = ()
    names: Sequence[SourceName] = ()
    """In the order of `since`."""
    callers: int = 0
    """The number of outermost calls that called the function in which the recording began."""

    def mistake(self, statements: int, values: Container[str]) -> str | None:
        """Return what is wrong with a trace of so many statements; None if it fits them and their values."""
        if len(self.statements) != statements:
            return f"it is about {len(self.statements)} statements, but the program has {statements}"
        callers = ((number, each.caller) for number, each in enumerate(self.calls))
        firsts: dict[int, int] = {}
        for number, each in enumerate(self.visits):
            firsts.setdefault(each.call, number)
        if any(not NO_VISIT <= each < len(self.visits) for each in self.statements):
            return "a statement belongs to no visit"
        calls = (*(each.call for each in self.visits), *(each.call for each in self.names))
        if any(not 0 <= call < len(self.calls) for call in calls):
            return "a visit or a name belongs to no call"
        if any(not NO_VISIT <= each.of < number for number, each in enumerate(self.visits)):
            return "a backward pass has no forward line"
        # A call comes after the visit that made it, so a stack ends.
        if any(not NO_VISIT <= caller < firsts.get(number, len(self.visits)) for number, caller in callers):
            return "a call has no caller"
        if self.callers < 0:
            return "its number of callers is negative"
        if any(a.since > b.since for a, b in pairwise(self.names)):
            return "its names are not in order"
        if any(each.value and each.value not in values for each in self.names):
            return "a name holds an unknown value"
        return None

    def file(self, visit: int) -> str:
        """Return the file of a visit's line."""
        found = self.visits[visit]
        return self.calls[found.call].file if found.of == NO_VISIT else self.file(found.of)

    def function(self, visit: int) -> str:
        """Return the function of a visit, such as `Block.forward` or `backward of Block.forward`."""
        found = self.visits[visit]
        own = self.calls[found.call].function
        if found.parameter:
            return f"{own} of {found.parameter}"
        return own if found.of == NO_VISIT else f"{own} of {self.function(found.of)}"

    def stack(self, visit: int) -> Iterator[SourceVisit]:
        """Yield a visit by its number, then the visits that called it; none for `NO_VISIT`."""
        while visit != NO_VISIT:
            found = self.visits[visit]
            yield found
            visit = self.calls[found.call].caller

    def names_of(self, call: int, statement: int) -> dict[str, str]:
        """Return the values of the names of a call before a statement runs, by name, in order of binding."""
        held: dict[str, str] = {}
        for each in self._by_call.get(call, ()):
            if each.since > statement:
                break
            held.pop(each.name, None)
            if each.value:
                held[each.name] = each.value
        return held

    def names_in(self, call: int) -> set[str]:
        """Return the names of a call that hold a value at some time."""
        return {each.name for each in self._by_call.get(call, ())}

    @cached_property
    def bound(self) -> frozenset[str]:
        """The names that any line binds."""
        return frozenset(each.name for each in self.names)

    @cached_property
    def _by_call(self) -> Mapping[int, Sequence[SourceName]]:
        found: dict[int, list[SourceName]] = {}
        for each in self.names:
            found.setdefault(each.call, []).append(each)
        return found


@dataclass(frozen=True, slots=True)
class StackLine:
    """A line of the user's source on a call stack, and the function that it belongs to."""

    file: str
    line: int
    function: str


def trace_of_stacks(stacks: Iterable[tuple[Sequence[StackLine], str]]) -> SourceTrace:
    """Return the trace of statements of which only the call stacks are known, outermost line first.

    Each comes with its graph.  Statements with the same stack belong to one visit.  If another graph begins
    at an earlier line of a function, the function was called again, by a new visit of the caller's line.
    """
    calls: list[SourceCall] = []
    visits: list[SourceVisit] = []
    statements: list[int] = []
    current: list[tuple[StackLine, int]] = []
    last = ""
    for lines, graph in stacks:
        kept = sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1][0], zip(lines, current, strict=False))
        )
        if kept and kept < min(len(lines), len(current)) and graph != last:
            before, now = current[kept][0], lines[kept]
            again = (before.file, before.function) == (now.file, now.function) and now.line < before.line
            kept -= again
        for depth in range(kept, len(lines)):
            here = lines[depth]
            caller = current[depth - 1][1] if depth else NO_VISIT
            replaced = current[depth] if depth < len(current) else None
            del current[depth:]
            if replaced is not None and calls[visits[replaced[1]].call] == SourceCall(
                here.file, here.function, caller
            ):
                call = visits[replaced[1]].call
            else:
                call = len(calls)
                calls.append(SourceCall(here.file, here.function, caller))
            current.append((here, len(visits)))
            visits.append(SourceVisit(call, here.line))
        if lines:
            del current[len(lines) :]
            last = graph
        statements.append(current[-1][1] if lines else NO_VISIT)
    return SourceTrace(calls, visits, statements)


@dataclass(frozen=True, slots=True)
class Arrival:
    """The beginning of a visit: its number, and the first statement that it or its calls run."""

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

    def begins(self, visit: int, statement: int) -> bool:
        """Return whether a statement is the first one that a visit or its calls run."""
        place = self.position.get(visit)
        return place is not None and self.arrivals[place].statement == statement

    def names_at(self, visit: int, statement: int) -> dict[str, str]:
        """Return the names of a visit's call before a statement runs, each with its value.

        In a backward pass, they include those after the forward line.
        """
        trace = self.trace
        visited = trace.visits[visit]
        names = trace.names_of(visited.call, statement)
        if visited.of == NO_VISIT:
            return names
        forward = trace.names_of(trace.visits[visited.of].call, self.last[visited.of] + 1)
        return {**forward, **names}

    def function_of(self, call: int) -> SourceFunction:
        """Return the function of a call; of a backward pass, that of its forward pass."""
        called = self.trace.calls[self._forward.get(call, call)]
        return called.file, called.function

    @cached_property
    def _forward(self) -> Mapping[int, int]:
        """The calls that are backward passes, each with the call of its forward pass."""
        visits = self.trace.visits
        return {each.call: visits[each.of].call for each in visits if each.of != NO_VISIT}

    def calls_around(self, visit: int) -> set[int]:
        """Return the call of a visit, and those around it."""
        return {self.trace.visits[each].call for each in self.stack_of(visit)}
