"""How the user's source ran when a step was recorded: calls, executions of lines, and names of tensors.

A *visit* is one execution of one line in one call of a function.  A statement belongs to a visit; the visit
to its call; the call to the visit of the caller's line.  The statements are those that a run executes, in
their order, without calls of graphs.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

NO_VISIT = -1
"""In place of a visit: no line of the user's source ran."""


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
    """One execution of a line: the number of its call, and the line, from 1."""

    call: int
    line: int


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

    def mistake(self, statements: int, values: Container[str]) -> str | None:
        """Return what is wrong with a trace of so many statements; None if it fits them and their values."""
        if len(self.statements) != statements:
            return f"it is about {len(self.statements)} statements, but the program has {statements}"
        callers = ((number, each.caller) for number, each in enumerate(self.calls))
        firsts = {each.call: number for number, each in reversed([*enumerate(self.visits)])}
        if any(not NO_VISIT <= each < len(self.visits) for each in self.statements):
            return "a statement belongs to no visit"
        if any(not 0 <= each.call < len(self.calls) for each in (*self.visits, *self.names)):
            return "a visit or a name belongs to no call"
        # A call comes after the visit that made it, so a stack ends.
        if any(not NO_VISIT <= caller < firsts.get(number, len(self.visits)) for number, caller in callers):
            return "a call has no caller"
        if any(a.since > b.since for a, b in pairwise(self.names)):
            return "its names are not in order"
        if any(each.value and each.value not in values for each in self.names):
            return "a name holds an unknown value"
        return None

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

    def steps(self) -> Iterator[tuple[int, int]]:
        """Yield (first statement, visit) of each run of consecutive statements of one visit."""
        before = None
        for number, visit in enumerate(self.statements):
            if visit != before:
                yield number, visit
            before = visit

    @cached_property
    def _by_call(self) -> Mapping[int, Sequence[SourceName]]:
        found: dict[int, list[SourceName]] = {}
        for each in self.names:
            found.setdefault(each.call, []).append(each)
        return found
