"""The names of the user's source at the breakpoints of a recorded step.

A condition such as ``loss > 3`` is read again each time that it is evaluated, with the values that the names
hold then.  A watch of a name stops where a line has bound it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from nncdbg.engine.stopping.breakpoints import Breakpoint
from nncdbg.ir.records import Path, Program
from nncdbg.ir.search import arrivals_in, same_file
from nncdbg.ir.source_trace import NO_VISIT, SourceFunction, SourceOrder
from nncdbg.ir.walk import fitting_trace


class SourceNames:
    """The names that the source of a program binds; none if it is not a recorded step with its source."""

    def __init__(self, program: Program) -> None:
        self._program = program

    @cached_property
    def order(self) -> SourceOrder | None:
        """The order of the source lines."""
        trace = fitting_trace(self._program)
        return None if trace is None else SourceOrder(self._program, trace)

    @property
    def bound(self) -> frozenset[str]:
        """The names that any line binds."""
        return frozenset() if self.order is None else self.order.trace.bound

    def bound_at(self, file: str, line: int) -> frozenset[str]:
        """Return the names that the functions with a line bind; the line is that or the next one that ran."""
        order = self.order
        if order is None:
            return frozenset()
        visits = [order.trace.visits[each.visit] for each in arrivals_in(order, file)]
        there = min((each.line for each in visits if each.line >= line), default=None)
        calls = {each.call for each in visits if each.line == there}
        return frozenset(each.name for each in order.trace.names if each.call in calls)

    def bound_in(self, function: SourceFunction) -> frozenset[str]:
        """Return the names that a function binds, those of its backward pass included."""
        return frozenset(name for name, _ in self._bindings(function))

    def bindings(self, function: SourceFunction, names: Iterable[str]) -> Iterator[tuple[Path, int]]:
        """Yield the graph and position of each statement before which one of the names is bound."""
        wanted = frozenset(names)
        found = {since for name, since in self._bindings(function) if name in wanted}
        order = self.order
        if order is not None:
            yield from (order.places[since] for since in sorted(found) if since < len(order.places))

    def _bindings(self, function: SourceFunction) -> Iterator[tuple[str, int]]:
        order = self.order
        if order is not None:
            for each in order.trace.names:
                if each.value and order.function_of(each.call) == function:
                    yield each.name, each.since

    def held(self, place: tuple[Path, int], ran: bool, found: Breakpoint | None = None) -> Mapping[str, str]:
        """Return the names and their values before the statement at a place runs.

        They are those of the call with the line or the function of a breakpoint; without one, of the line
        that the statement belongs to.  With `ran`, the statement before is meant instead.
        """
        order = self.order
        if order is None:
            return {}
        number = order.number(*place)
        of = max(number - ran, 0)
        stacks = order.stacks[of : of + 1]
        if found is not None and found.function is not None:
            # The function may have returned.
            stacks += order.stacks[max(number - 1, 0) : number]
        visits = (_visit(order, stack, of, found) for stack in stacks)
        visit = next((each for each in visits if each != NO_VISIT), NO_VISIT)
        return {} if visit == NO_VISIT else order.names_at(visit, number)


def _visit(order: SourceOrder, stack: tuple[int, ...], number: int, found: Breakpoint | None) -> int:
    """Return the visit of a stack in the function or at the line of a breakpoint; `NO_VISIT` for none."""
    trace, choices = order.trace, [stack]
    if found is not None and found.function is not None:
        choices = [
            tuple(each for each in stack if order.function_of(trace.visits[each].call) == found.function)
        ]
    elif found is not None and found.kind == "source":
        file, _, line = found.target.rpartition(":")
        at = tuple(
            each
            for each in stack
            if trace.visits[each].line == int(line) and same_file(trace.file(each), file)
        )
        # A stop is at the outermost of the lines that begin.
        begun = tuple(each for each in at if order.begins(each, number))[:1]
        choices = [begun, at, stack]
    return next((each[-1] for each in choices if each), NO_VISIT)
