"""What stops a debugged program or script: breakpoints and caught findings."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from nncdbg.engine.execution.findings import KINDS
from nncdbg.errors import UsageError
from nncdbg.target.breakpoint_syntax import (
    breakpoint_commands,
    is_computed,
    parse_place,
    parse_stop,
    plain_name,
    split_source,
    stream_number,
)
from nncdbg.target.records import Place
from nncdbg.text.places import place_text

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.stopping.breakpoints import Breakpoint
    from nncdbg.expression import Expression
    from nncdbg.ir.source_trace import SourceFunction
    from nncdbg.target.cells import Places
    from nncdbg.target.source import SourceView

CATCHES = KINDS
"""The kinds of findings at which a program stops."""

_SHOWN = 3
"""Maximum number of lines of a breakpoint in its `where`."""


@dataclass(frozen=True, slots=True)
class StopPoint:
    """A breakpoint, watchpoint, assertion or logpoint at one moment.

    `text` is its place, condition and hit rule, as in ``op Softmax if $iter > 3``.
    """

    number: int
    text: str
    kind: str
    """As of the engine's breakpoints, or of a `LiveBreakpoint`."""
    place: str
    """The place as `break` takes it, the name of a watched value, or the expression."""
    commands: tuple[str, ...]
    """The commands of the prompt that set an equal one; ``$bpnum`` is its number in them."""
    when: str | None = None
    """The condition."""
    hits: str | None = None
    """The hit rule, such as ``>=3``."""
    enabled: bool = True
    temporary: bool = False
    log: str | None = None
    """The message of a logpoint."""
    count: int = 0
    """The number of hits so far."""
    ignored: int = 0
    """The number of next hits that do not stop."""
    lines: tuple[int, ...] = ()
    """The lines of its statements in the program's text."""
    note: str = ""
    function: SourceFunction | None = None
    """The function of the user's source with the names that it watches."""

    @property
    def set_by(self) -> list[str]:
        """The commands of the prompt that set it, without those of its present state."""
        return [each for each in self.commands if not each.startswith(("disable $bpnum", "ignore $bpnum"))]

    @property
    def where(self) -> str:
        """Its lines, unless `text` has them: ``, lines 3, 9``."""
        if self.kind == "line":
            return ""
        if not self.lines:
            return ", after every statement" if self.kind in ("watch", "assert") else ""
        more = f" and {len(self.lines) - _SHOWN} more" if len(self.lines) > _SHOWN else ""
        shown = ", ".join(map(str, self.lines[:_SHOWN]))
        return f", line{'s' if len(self.lines) > 1 else ''} {shown}{more}"


@dataclass(frozen=True, slots=True)
class Catch:
    """A kind of findings at which what is debugged stops, with a condition."""

    kind: str
    when: str | None = None
    rank: int | None = None
    """The rank that stops; None for all, and without ranks."""

    def __str__(self) -> str:
        """Return ``nan if $step > 3``, as the arguments of `catch`."""
        when = f" if {self.when}" if self.when else ""
        return f"{self.kind}{when}" + ("" if self.rank is None else f" on rank {self.rank}")


class Stops(Protocol):
    """The breakpoints and caught findings of what is debugged.

    All methods with a number raise UsageError if no breakpoint has it.
    """

    def numbers(self) -> set[int]:
        """Return the numbers of all breakpoints."""

    def points(self) -> Sequence[StopPoint]:
        """Return all breakpoints, in the order of their numbers."""

    def here(self) -> str:
        """Return the present place, as `add` takes it.  Raises UsageError where there is none."""

    def stop_at(self, numbers: Container[int]) -> bool:
        """Stop where the program is if breakpoints with these numbers are there; return whether one is."""
        return False

    def add(self, text: str, *, temporary: bool = False, log: str | None = None) -> StopPoint:
        """Add a breakpoint at ``PLACE [stream N] [if EXPR] [hits N]``.

        Raises UsageError for a place that does not exist, ExpressionError for an invalid expression.
        """

    def watch(self, expression: str, when: str | None, hits: str | None) -> StopPoint:
        """Stop after statements that write a value or change an expression.  Raises as `add` does."""

    def check(self, expression: str, when: str | None, hits: str | None) -> StopPoint:
        """Stop after statements that make an expression false.  Raises as `add` does."""

    def at(self, place: str) -> Sequence[StopPoint]:
        """Return the breakpoints that stop at a place.  Raises UsageError if there are none."""

    def delete(self, number: int) -> None:
        """Delete a breakpoint."""

    def enable(self, number: int, enabled: bool) -> None:
        """Enable or disable a breakpoint."""

    def set_condition(self, number: int, when: str | None) -> StopPoint:
        """Replace or remove the condition of a breakpoint.  Raises ExpressionError for an invalid one."""

    def ignore(self, number: int, count: int) -> StopPoint:
        """Ignore the next `count` hits of a breakpoint."""

    def catches(self) -> Sequence[Catch]:
        """Return the caught kinds of findings, with their conditions."""

    def catch(self, kinds: Sequence[str], when: str | None) -> None:
        """Stop at findings of these kinds, if a condition holds.

        Raises UsageError for an unknown kind, ExpressionError for an invalid condition.
        """

    def uncatch(self, kinds: Sequence[str]) -> None:
        """Stop no more at findings of these kinds; without kinds, at none."""


def unknown_number(number: int) -> UsageError:
    """Return the error about a number that no breakpoint has."""
    return UsageError(f"there is no breakpoint {number}", hint="list the breakpoints with `info breakpoints`")


def no_watched_expression() -> UsageError:
    """Return the error about `watch` with an expression in a running script."""
    return UsageError(
        "a running script can watch a parameter or gradient, not an expression",
        hint="test the results of an operator: `break aten.addmm if mean($out) > 1`",
    )


def no_assertion() -> UsageError:
    """Return the error about `assert` in a running script."""
    return UsageError(
        "a running script has no values by name that an assertion could test",
        hint="test the results of an operator: `break aten.addmm if max($out) > 1e4`",
    )


def no_stop_at(place: str) -> UsageError:
    """Return the error about a place without a breakpoint."""
    return UsageError(
        f"there is no breakpoint at {place}", hint="list the breakpoints with `info breakpoints`"
    )


def setup_commands(command: str, *more: str, enabled: bool, ignored: int) -> tuple[str, ...]:
    """Return the commands that set a breakpoint by `command`, with its state."""
    state = [] if enabled else ["disable $bpnum"]
    state += [f"ignore $bpnum {ignored}"] if ignored else []
    return (command, *more, *state)


def _current_line(debugger: Debugger) -> int:
    """Return the line of the selected frame's statement.  Raises UsageError outside the program's text."""
    frame = debugger.frames[max(0, debugger.selected)]
    line = debugger.loaded.line(frame.code, frame.pc)
    if line is None or frame.code.formula is not None or debugger.ended:
        raise UsageError(
            "no current line: the program has ended or is in a micro program", hint="add a line number"
        )
    return line


class ProgramStops(Stops):
    """The breakpoints and catches of a program."""

    def __init__(self, debugger: Debugger, places: Places, source: SourceView | None) -> None:
        self._debugger, self._places, self._source = debugger, places, source
        self._breakpoints = debugger.breakpoints

    def numbers(self) -> set[int]:
        return {each.number for each in self._breakpoints}

    def points(self) -> Sequence[StopPoint]:
        return [_stop_point(each) for each in self._breakpoints]

    def here(self) -> str:
        return str(_current_line(self._debugger))

    def add(self, text: str, *, temporary: bool = False, log: str | None = None) -> StopPoint:
        spec = parse_stop(text)
        when = spec.when
        if spec.stream is not None:
            on_stream = f"$stream == {stream_number(self._debugger.program, spec.stream)}"
            when = on_stream if when is None else f"{on_stream} and ({when})"
        place: dict[str, Any] = {spec.kind: _place(spec.kind, spec.name)}
        if spec.kind == "line":
            place["line"] = int(spec.name)
        made = self._debugger.break_at(**place, when=when, hits=spec.hits, log=log, temporary=temporary)
        return _stop_point(made)

    def lines(self, place: str) -> tuple[str, tuple[int, ...]]:
        """Return (kind, lines) of a place.  Raises UsageError if it does not exist."""
        kind, name = parse_place(place)
        return kind, self._breakpoints.lines(kind, _place(kind, name))

    def set_at(
        self,
        kind: str,
        place: Any,
        when: str | None = None,
        hits: str | None = None,
        log: str | None = None,
    ) -> StopPoint:
        """Add a breakpoint at one place, given by its kind.

        A `line`; a `source` as (file, line); the name of an `op`, `graph`, `value` or `node`, or any `name`;
        `data`, the name of a value that is written; a `site`, which is a Place, or a listing of micro
        programs and a line.  Raises as `add` does.
        """
        if isinstance(place, Place):
            block = place.path if place.micro is None else self._places.code(place)
            place = block, place.pc
        return _stop_point(self._breakpoints.add({kind: place}, when, hits, log))

    def together(self) -> AbstractContextManager[None]:
        """Apply the changes in the body of the context together, at its end."""
        return self._breakpoints.traps.together()

    def lines_of(self, file: str) -> Collection[int]:
        """Return the lines of a file of the user's model that made statements; none for other files."""
        return self._breakpoints.placement.origin(file)

    def stop_at(self, numbers: Container[int]) -> bool:
        debugger = self._debugger
        stop = debugger.control.stop_here(numbers)
        if stop is not None:
            debugger.move(lambda: stop)
        return stop is not None

    def watch(self, expression: str, when: str | None, hits: str | None) -> StopPoint:
        function = self._function
        if function is not None and expression in self.bound_in(function):
            return self.watch_name(expression, function, when, hits)
        name = plain_name(expression)
        elsewhere = self._source.binding(expression) if self._source is not None else []
        if elsewhere and (name is None or self._debugger.values.find(name) is None):
            words = f"no line binds `{expression}` here, but in {', '.join(elsewhere)}"
            raise UsageError(words, hint=f"stop in {elsewhere[0]}, then watch it")
        if name is not None and (self._debugger.values.has(name) or not is_computed(expression)):
            return _stop_point(self._debugger.watch_value(name, when, hits))
        return _stop_point(self._breakpoints.add({"watch": expression}, when, hits, function=function))

    def bound_in(self, function: SourceFunction) -> frozenset[str]:
        """Return the names that a function of the user's source binds."""
        return self._breakpoints.placement.source.bound_in(function)

    def watch_name(
        self, name: str, function: SourceFunction, when: str | None = None, hits: str | None = None
    ) -> StopPoint:
        """Stop where a line of a function of the user's source has bound a name.  Raises as `add` does."""
        return _stop_point(self._breakpoints.add({"binding": name}, when, hits, function=function))

    def check(self, expression: str, when: str | None, hits: str | None) -> StopPoint:
        made = self._breakpoints.add({"assert": expression}, when, hits, function=self._function)
        return _stop_point(made)

    @property
    def _function(self) -> SourceFunction | None:
        """The function of the user's source in which the program is."""
        return self._source.function_at(self._source.selected) if self._source is not None else None

    def at(self, place: str) -> Sequence[StopPoint]:
        _, lines = self.lines(place)
        there = [
            _stop_point(each)
            for each in self._breakpoints
            if not each.after_writes and not {*lines}.isdisjoint(each.lines)
        ]
        if not there:
            raise no_stop_at(f"line {lines[0]}" if len(lines) == 1 else place)
        return there

    def delete(self, number: int) -> None:
        self._debugger.delete(number)

    def enable(self, number: int, enabled: bool) -> None:
        self._breakpoints.enable(number, enabled)

    def set_condition(self, number: int, when: str | None) -> StopPoint:
        return _stop_point(self._breakpoints.set_condition(number, when))

    def ignore(self, number: int, count: int) -> StopPoint:
        return _stop_point(self._breakpoints.ignore(number, count))

    def catches(self) -> Sequence[Catch]:
        return catches_of(self._debugger.observers.catches.conditions)

    def catch(self, kinds: Sequence[str], when: str | None) -> None:
        self._debugger.catch(*kinds, when=when)

    def uncatch(self, kinds: Sequence[str]) -> None:
        self._debugger.uncatch(*kinds)

    @property
    def conditions(self) -> Mapping[str, Expression | None]:
        """The caught kinds of findings, with their conditions."""
        return self._debugger.observers.catches.conditions

    @conditions.setter
    def conditions(self, conditions: Mapping[str, Expression | None]) -> None:
        self._debugger.observers.catch_only(conditions)

    def impossible(self) -> frozenset[str]:
        """Return the kinds of findings that this program cannot have."""
        return frozenset(self._debugger.observers.beyond())


def first_conditions() -> Mapping[str, Expression | None]:
    """Return the kinds of findings at which every program stops at first."""
    from nncdbg.engine.observers.catching import Catches

    return Catches().conditions


def _place(kind: str, name: str) -> Any:
    """Return a place of this kind as the engine takes it: for `source`, (file, line)."""
    return split_source(name) if kind == "source" else name


def _stop_point(breakpoint: Breakpoint) -> StopPoint:
    ignored = max(0, breakpoint.skipped - breakpoint.count)
    enabled = breakpoint.enabled
    return StopPoint(
        number=breakpoint.number,
        text=str(breakpoint),
        kind=breakpoint.kind,
        place=place_text(breakpoint.kind, breakpoint.target),
        commands=setup_commands(*breakpoint_commands(breakpoint), enabled=enabled, ignored=ignored),
        when=breakpoint.condition.text if breakpoint.condition is not None else None,
        hits=breakpoint.hits,
        enabled=enabled,
        temporary=breakpoint.temporary,
        log=breakpoint.log,
        count=breakpoint.count,
        ignored=ignored,
        lines=breakpoint.lines,
        note=breakpoint.note,
        function=breakpoint.function,
    )


def catches_of(conditions: Mapping[str, Expression | None]) -> list[Catch]:
    """Return caught kinds with their conditions as records."""
    return [Catch(kind, when.text if when is not None else None) for kind, when in conditions.items()]
