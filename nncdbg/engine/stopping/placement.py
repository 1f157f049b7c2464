"""Set breakpoints: check the request, bind its target (line, op, graph or value) to statements, number it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from nncdbg.engine.compilation.code import Code, walk
from nncdbg.engine.ops.valid_integers import known_type
from nncdbg.engine.stopping.breakpoints import Breakpoint, Traps, hit_rule, matching, reads_result
from nncdbg.engine.stopping.place_names import ANY, NamedPlace, PlaceNames
from nncdbg.engine.values.values import Values
from nncdbg.errors import ExpressionError, UsageError
from nncdbg.expression import Expression, check_condition, evaluate_index, spelled, split_target
from nncdbg.ir.records import Path, Program
from nncdbg.ir.search import arrivals_in, origins, same_file
from nncdbg.ir.source_trace import NO_VISIT, SourceFunction, SourceOrder
from nncdbg.ir.walk import fitting_trace
from nncdbg.text.listing import Listing
from nncdbg.text.places import place_text


class SourceNames:
    """The names that the source of a program binds; none if it is not a recorded step with its source.

    A condition such as ``loss > 3`` is read again each time that it is evaluated, with the values that the
    names hold then.  A watch of a name stops where a line has bound it.
    """

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


@dataclass(frozen=True)
class BreakpointPlaces:
    """Binds breakpoints to the statements of one program."""

    program: Program
    listing: Listing
    listing_in: Callable[[Code], Listing]
    """Returns the listing that contains the statements of a block."""
    named: PlaceNames
    source: SourceNames

    @cached_property
    def origins(self) -> Mapping[str, Mapping[int, Sequence[tuple[Path, int]]]]:
        """The statements of each line of each file of the user's model.

        Of a recorded step, these are the statements at which executions of the line began.
        """
        found: dict[str, Mapping[int, Sequence[tuple[Path, int]]]] = {**origins(self.program)}
        order = self.source.order
        if order is not None:
            trace = order.trace
            begun: dict[str, dict[int, list[tuple[Path, int]]]] = {}
            for each in arrivals_in(order):
                lines = begun.setdefault(trace.file(each.visit), {})
                lines.setdefault(trace.visits[each.visit].line, []).append(order.places[each.statement])
            found.update(begun)
        return found

    def bind(self, found: Breakpoint, codes: Iterable[Code]) -> None:
        """Set the lines and sites of a breakpoint.  Raises UsageError for a place that does not exist."""
        if found.kind == "line":
            self._bind_line(found)
        elif found.kind == "source":
            self._bind_source(found)
        elif found.kind == "site":
            self._bind_site(found)
        else:
            self._bind_target(found)
        for code in codes:
            self.bind_in(found, code)
        if not found.after_writes and any(after and pc for _, pc, after in found.sites):
            what = "the condition" if found.log is None else "the message"
            words = f"{what} reads the result, so it is evaluated after the statement"
            found.note = f"{found.note}; {words}" if found.note else words

    def _bind_line(self, found: Breakpoint) -> None:
        line = int(found.target)
        place = self.listing.next_site(line)
        if place is None or line < 1:
            last = len(self.listing.lines)
            raise UsageError(f"no statement at or after line {line}", hint=f"choose a line from 1 to {last}")
        if place[0] != line:
            found.note = f"line {line} has no statement; moved to line {place[0]}"
            found.target = str(place[0])
        found.lines = (place[0],)

    def _bind_source(self, found: Breakpoint) -> None:
        file, _, number = found.target.rpartition(":")
        line = int(number)
        origin = self.origin(file)
        if not origin:
            files = sorted(self.origins)
            hint = f"use one of the source files: {', '.join(files[:3])}{' ...' if len(files) > 3 else ''}"
            raise UsageError(f"no statement comes from {file}", hint=hint if files else None)
        there = min((each for each in origin if each >= line), default=None)
        if there is None or line < 1:
            raise UsageError(f"no statement comes from {file}:{line} or later")
        if there != line:
            found.note = f"line {line} has no statement; moved to line {there}"
            found.target = f"{file}:{there}"
        found.lines = tuple(sorted(self.listing.line(path, pc) for path, pc in origin[there]))

    def origin(self, file: str) -> dict[int, list[tuple[Path, int]]]:
        """Return the statements of each line of a file of the user's model; empty for other files."""
        lines: dict[int, list[tuple[Path, int]]] = {}
        for known, origin in self.origins.items():
            if same_file(known, file):
                for line, sites in origin.items():
                    lines.setdefault(line, []).extend(sites)
        return lines

    def _bind_site(self, found: Breakpoint) -> None:
        assert found.place is not None
        block, pc = found.place
        if isinstance(block, Listing):
            if block.site(pc) is None:
                raise UsageError(f"there is no statement on {found.target}")
            return
        if isinstance(block, Code):
            if block.formula is not None:
                return
            block = block.path
        lines = self.listing.statements.get(block, ())
        if not 0 <= pc < len(lines):
            raise UsageError(f"there is no statement {found.target}")
        found.lines = (lines[pc],)

    def _bind_target(self, found: Breakpoint) -> None:
        kind = "data" if found.after_writes else found.kind
        names = found.written if found.after_writes else found.names
        bound = self._bound(found)
        lines = {
            *self.lines(NamedPlace(kind, found.target, names)),
            *(self.listing.line(*each) for each in bound),
        }
        found.lines = tuple(sorted(lines))
        if not found.lines and not (found.expression is not None and found.reads_out):
            words = f"`{found.target}` reads no value that the program computes"
            raise UsageError(words, hint="write, for example, max(abs(%h)) < 6e4")

    def lines(self, place: NamedPlace) -> tuple[int, ...]:
        """Return the lines of the statements of a place, in order."""
        return tuple(sorted({self.listing.line(*site) for site in self.named.statements(place)}))

    def bind_in(self, found: Breakpoint, code: Code) -> None:
        """Add the statements of one block, which may be compiled after the breakpoint was set."""
        if found.kind not in ("line", "source", "site"):
            found.sites.extend((code, pc, after) for pc, after in matching(found, code))
            if code.formula is None:
                found.sites.extend((code, pc, False) for path, pc in self._bound(found) if path == code.path)
            return
        for pc in self._statements(found, code):
            after = pc < len(code.nodes) and reads_result(found, code.nodes[pc])
            found.sites.append((code, pc + after, after))

    def _bound(self, found: Breakpoint) -> list[tuple[Path, int]]:
        """Return the statements before which names that a breakpoint watches are bound."""
        if found.function is None:
            return []
        names = [found.target] if found.expression is None else found.expression.sourced
        return [*self.source.bindings(found.function, names)]

    def _statements(self, found: Breakpoint, code: Code) -> Iterator[int]:
        """Yield the statements of a block that match a line or site breakpoint."""
        block, number = found.place or (None, 0)
        if isinstance(block, Code):
            if block is code:
                yield number
            return
        if isinstance(block, Listing):
            site = block.site(number)
            alike = code.formula is not None and self.listing_in(code).lines == block.lines
            if alike and site is not None and site.path == code.path:
                yield site.pc
            return
        if code.formula is None:
            for line in found.lines:
                site = self.listing.site(line)
                if site is not None and site.path == code.path:
                    yield site.pc


def braced(text: str) -> list[str]:
    """Return the expressions in braces of a log message.  Raises UsageError for an unclosed brace."""
    parts, start = [], 0
    while (opening := text.find("{", start)) >= 0:
        closing = text.find("}", opening)
        if closing < 0:
            raise UsageError(f"the brace at column {opening + 1} of the log message is not closed")
        parts.append(text[opening + 1 : closing])
        start = closing + 1
    return parts


@dataclass(frozen=True, slots=True)
class _Read:
    """A condition, the names of values that it and the log message read, and whether they read `$out`."""

    condition: Expression | None
    names: frozenset[str]
    out: bool


class Breakpoints(Sequence[Breakpoint]):
    """The breakpoints of a program, in the order of their numbers.

    `traps` stores them; conditions can contain the names of `scope`.
    """

    def __init__(self, placement: BreakpointPlaces, traps: Traps, scope: Values) -> None:
        self.placement = placement
        self.traps = traps
        self.scope = scope
        self._numbers = 0

    def __len__(self) -> int:
        return len(self.traps.breakpoints)

    def __getitem__(self, index: Any) -> Any:
        return [*self.traps.breakpoints.values()][index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]

    def __contains__(self, found: object) -> bool:
        return any(found is each for each in self.traps.breakpoints.values())

    def __repr__(self) -> str:
        return f"<Breakpoints {[*self]}>"

    def add(
        self,
        asked: Mapping[str, Any],
        when: str | None = None,
        hits: int | str | None = None,
        log: str | None = None,
        temporary: bool = False,
        number: int | None = None,
        function: SourceFunction | None = None,
    ) -> Breakpoint:
        """Add a breakpoint at the one requested place, by kind, that is not None.

        `data` stops after each statement that writes a value.  `watch` stops after each statement that
        changes the result of an expression, such as ``"%h[0, 3]"``; the first result counts as a change
        unless it is false.  `assert` stops after each statement that writes an operand of an expression and
        makes it false; with ``$out``, it evaluates the expression after every statement.  See
        `Debugger.break_at` for the other kinds.  `number` is an unused number; without it, the next one.
        `function` is the function with the names of the user's source in a `watch` or an `assert`; a
        `binding` stops where a line of it has bound a name.

        Raises UsageError for a place that does not exist, ExpressionError for a wrong expression.
        """
        chosen = [(kind, place) for kind, place in asked.items() if place is not None]
        if len(chosen) != 1:
            raise UsageError(
                "a breakpoint needs exactly one place: a name, line, op, graph, value, node, source or site",
                hint='use break_at("Softmax") or break_at(line=12)',
            )
        kind, place = chosen[0]
        _check_kind(kind, place)
        bound = self.placement.source.bound_in(function) if function is not None else frozenset()
        expression = self.scope.read(place, bound) if kind in ("watch", "assert") else None
        if kind == "watch" and expression is not None and not expression.sourced:
            self._check_element(place)
        if kind == "binding" and place not in bound:
            where = "here" if function is None else f"in {function[1]}"
            raise UsageError(f"no line binds `{place}` {where}", hint="list the names with `info locals`")
        if expression is not None and not expression.sourced:
            function = None
        named = self._named(kind, place)
        kind, target = named.kind, named.target
        when, log = self._in_full(when, kind, target), self._in_full(log, kind, target)
        read = self._read(when, log, kind, target, bound)
        rule = str(hits) if hits is not None else None
        if rule is not None:
            hit_rule(rule)
        found = Breakpoint(
            number or self._numbers + 1,
            kind,
            target,
            read.condition,
            rule,
            log,
            read.names,
            temporary,
            place if kind == "site" else None,
            read.out or (expression is not None and expression.reads_result),
            expression,
            named.names,
            function,
        )
        self._bind(found)
        self._numbers = max(self._numbers, found.number)
        self.traps.breakpoints[found.number] = found
        self.traps.rearm()
        return found

    def _check_element(self, text: str) -> None:
        """Raise UsageError for an element such as ``%h[9, 0]`` that is out of bounds, if sizes are known."""
        try:
            name, index = split_target(text, self.scope.has, self.scope.names)
        except ExpressionError:
            return  # Another expression, which is already parsed.
        if index is None or index.names:
            return
        types = {known_type(code.types.get(name)) for code in self.traps.codes if name in code.slot_of}
        known = types.pop() if len(types) == 1 else None
        if known is not None:
            shape = [int(size) for size in known.shape or () if size is not None]
            try:
                np.broadcast_to(False, shape)[evaluate_index(index, self.scope)]
            except IndexError as error:
                raise UsageError(f"{text.strip()} is not an element of {known}: {error}") from None

    def _in_full(self, text: str | None, kind: str, target: str) -> str | None:
        """Return a condition or message with the names below the module of its line or graph in full."""
        if not isinstance(text, str) or "%." not in text or kind not in ("line", "graph"):
            return text
        listing = self.placement.listing
        line = int(target) if kind == "line" else listing.headers.get((target,), 0)
        site = listing.next_site(line) if kind == "line" else None
        return listing.in_full(text, line if site is None else site[0])

    def _read(
        self, when: str | None, log: str | None, kind: str, target: str, bound: frozenset[str] = frozenset()
    ) -> _Read:
        """Return the condition, and the names that it and the log message read.  Raises ExpressionError.

        Both may use names of the user's source: those `bound` in the function of a watch; at a line, those
        of its functions; elsewhere, all.
        """
        value = spelled(target) if kind in ("value", "data") else "$out"
        if kind == "source":
            file, _, line = target.rpartition(":")
            bound = self.placement.source.bound_at(file, int(line))
        bound = bound or self.placement.source.bound
        condition = check_condition(self.scope.read(when, bound), value) if when else None
        if log is not None and not isinstance(log, str):
            message = f"a log message must be a string, not {type(log).__name__}"
            raise UsageError(message, hint='for example log="max {max(%h)}"')
        read = [self.scope.read(part, bound) for part in braced(log or "")]
        read += [condition] if condition is not None else []
        names = frozenset[str]().union(*(each.names for each in read))
        return _Read(condition, names, any(each.reads_result for each in read))

    def _bind(self, found: Breakpoint) -> None:
        """Bind a breakpoint to its statements.  Raises UsageError if `$out` has no value there."""
        self.placement.bind(found, self.traps.codes)
        before = found.sites and not any(after for _, _, after in found.sites)
        if found.reads_out and (found.kind == "graph" or before):
            place = place_text(found.kind, found.target)
            raise UsageError(
                f"`$out` has no value at {found.kind} {place}: no result is computed there",
                hint="break at an op, a value or a statement with results",
            )

    def _named(self, kind: str, place: Any) -> NamedPlace:
        """Return the kind and the target of a place, and the names that it stands for."""
        match kind:
            case "watch" | "assert" | "binding" | "line":
                return NamedPlace(kind, str(place), frozenset())
            case "source":
                return self.source(*place)
            case "site":
                block, pc = place
                words = f"line {pc} of a micro program"
                if not isinstance(block, Listing):
                    name = block.graph.name if isinstance(block, Code) else ".".join(map(str, block))
                    words = f"{pc} of @{name}"
                return NamedPlace(kind, words, frozenset())
        sigil = {"graph": "@", "value": "%", "data": "%"}.get(kind, "")
        return self.placement.named.resolve(kind, place.removeprefix(sigil))

    def lines(self, kind: str, place: Any) -> tuple[int, ...]:
        """Return the lines of a place, as `add` takes it.  Raises UsageError if it does not exist."""
        _check_kind(kind, place)
        named = self._named(kind, place)
        found = Breakpoint(0, named.kind, named.target, names=named.names)
        self.placement.bind(found, ())
        return found.lines

    def source(self, file: str, line: int | str) -> NamedPlace:
        """Return a line of the user's model, or the place with a name of this form, such as ``conv:0``."""
        text, named = f"{file}:{line}", self.placement.named
        if not self.placement.origin(file):
            with suppress(UsageError):
                return named.resolve(ANY, text)
        return NamedPlace("source", text, frozenset())

    def set_condition(self, number: int, when: str | None) -> Breakpoint:
        """Replace the condition of a breakpoint, or remove it.

        Raises UsageError for an unknown number, ExpressionError for a wrong condition.
        """
        found = self.find(number)
        before = _Read(found.condition, found.reads, found.reads_out)
        try:
            when = self._in_full(when, found.kind, found.target)
            bound = self.placement.source.bound_in(found.function) if found.function is not None else ()
            self._bind_again(found, self._read(when, found.log, found.kind, found.target, frozenset(bound)))
        except UsageError:
            self._bind_again(found, before)
            raise
        finally:
            self.traps.rearm()
        return found

    def _bind_again(self, found: Breakpoint, read: _Read) -> None:
        found.condition, found.reads, found.reads_out = read.condition, read.names, read.out
        found.sites.clear()
        found.note = ""
        self._bind(found)

    def ignore(self, number: int, count: int) -> Breakpoint:
        """Ignore the next `count` hits of a breakpoint.  Raises UsageError for an unknown number."""
        found = self.find(number)
        found.skipped = found.count + max(0, count)
        return found

    def delete(self, number: int | None = None) -> None:
        """Remove one breakpoint, or all.  Raises UsageError for an unknown number."""
        if number is None:
            self.traps.breakpoints.clear()
            self.traps.rearm()
        else:
            self.traps.remove(self.find(number).number)

    def enable(self, number: int, enabled: bool = True) -> None:
        """Enable or disable a breakpoint.  Raises UsageError for an unknown number."""
        self.find(number).enabled = enabled
        self.traps.rearm()

    def find(self, number: int) -> Breakpoint:
        """Return the breakpoint with a number.  Raises UsageError if there is none."""
        found = self.traps.breakpoints.get(number)
        if found is None:
            raise UsageError(
                f"there is no breakpoint {number}", hint="list the breakpoints with `info breakpoints`"
            )
        return found

    def reach(self, code: Code) -> None:
        """Set the breakpoints' traps in a newly compiled block and the blocks inside it."""
        if self.traps.breakpoints:
            for each in walk(code):
                for found in self.traps.breakpoints.values():
                    self.placement.bind_in(found, each)
            self.traps.rearm()


def _check_kind(kind: str, place: Any) -> None:
    """Raise UsageError for a line that is not a number, a source without one, or a name that is not text."""
    if kind in ("line", "source"):
        try:
            _, line = place if kind == "source" else ("", place)
            int(line)
        except (TypeError, ValueError):
            form = 'source=("net.py", 12)' if kind == "source" else "line=12"
            needed = "a file and a line" if kind == "source" else "a number"
            raise UsageError(
                f"the {kind} must be {needed}, not {place!r}", hint=f"use break_at({form})"
            ) from None
    elif kind != "site" and not isinstance(place, str):
        raise UsageError(
            f"{kind} must be a string, not {type(place).__name__}", hint='use break_at(op="Softmax")'
        )
