"""Locations of statements in reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.compilation.partial import Places
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.diagnosis.finding_records import ENTRANCE, FindingRecord
from nncdbg.errors import NncdbgError
from nncdbg.expression import spelled
from nncdbg.ir.kinds import CONTROL
from nncdbg.ir.records import Location, type_of
from nncdbg.ir.source_trace import NO_VISIT, SourceOrder, SourceTrace
from nncdbg.ir.walk import fitting_trace
from nncdbg.nan_watch.records import FindingSite, Operand, SourceTraceback, TracebackLine, WatchFinding
from nncdbg.presentation.source_files import names_on, source_text
from nncdbg.stats import summarize


def in_text_order(found: Sequence[FindingRecord], places: Places) -> list[FindingRecord]:
    """Return findings in the order of the run; for a permuted program, in that of its text.

    `places` are those of a permuted program.  No statement of it moves across control flow, so findings
    between two points of control flow change places only among each other.
    """
    ordered = sorted(found, key=lambda each: (each.tick, each.number))
    groups: dict[object, list[int]] = {}
    for at, each in enumerate(ordered):
        code, pc = each.statement.code, each.statement.pc
        if code.path in places and 0 <= pc < len(code.nodes):
            calls = tuple((call.code.path, call.pc) for call in each.calls)
            groups.setdefault((code.path, _segment(code, pc), each.iteration, calls), []).append(at)
    for slots in groups.values():
        numbers = places[ordered[slots[0]].statement.code.path][1]
        moved = sorted((ordered[slot] for slot in slots), key=lambda each: numbers[each.statement.pc])
        for slot, sighting in zip(slots, moved, strict=True):
            ordered[slot] = sighting
    return ordered


def _segment(code: Code, pc: int) -> int:
    """Return the first statement after the control flow before a statement."""
    while pc and code.nodes[pc - 1].kind not in CONTROL:
        pc -= 1
    return pc


def site_of(code: Code, pc: int, value: str, debugger: Debugger) -> FindingSite:
    """Return the location of a statement; with the pc ENTRANCE, the line of the block's parameters."""
    graph = code.graph.name or str(code.path[0])
    if pc == ENTRANCE:
        return FindingSite(_line_of_input(code, value, debugger), graph, "", "", value)
    line = debugger.loaded.line(code, pc)
    text = debugger.loaded.listing_of(code).statement(line).strip() if line is not None else ""
    if pc >= len(code.nodes):
        return FindingSite(line, graph, "", "return", value, text=text)
    return FindingSite.of(line, graph, code.nodes[pc], value, text)


def site_at(statement: Statement, debugger: Debugger, value: str = "") -> FindingSite:
    """Return the location of a statement, by default with the name of its first result."""
    code, pc = statement.code, statement.pc
    outputs = code.nodes[pc].outputs if pc < len(code.nodes) else ()
    return site_of(code, pc, value or (outputs[0].name if outputs else ""), debugger)


def _line_of_input(code: Code, name: str, debugger: Debugger) -> int | None:
    """Return the line of a block's parameters; for the data of a training, that of the run."""
    for pc, bodies in code.bodies.items():
        if any(body.epoch is not None and name in body.nodes[0].inputs for body in bodies):
            return debugger.loaded.line(code, pc)
    return debugger.loaded.listing_of(code).header_line(code.path)


def calls_of(calls: Sequence[Statement], debugger: Debugger) -> tuple[FindingSite, ...]:
    """Return the locations of the statements that called the enclosing functions."""
    return tuple(site_at(each, debugger) for each in calls)


# -- the user's source ---------------------------------------------------------------------

_MOST_NAMES = 8
"""Most names of a line."""


def with_sources(findings: Sequence[WatchFinding], debugger: Debugger) -> list[WatchFinding]:
    """Return the findings of a run that is over, with the user's source as far as it was recorded.

    The values of names are read from the run.  It goes back for them if it has ended, and returns to its end.
    """
    trace = fitting_trace(debugger.program) if findings else None
    if trace is None:
        return [_with_stack(each, debugger) for each in findings]
    sources = _Sources(debugger, trace)
    entered = [sources.entered(each) for each in findings]
    sources.go_before()
    return entered


def _with_stack(finding: WatchFinding, debugger: Debugger) -> WatchFinding:
    """Return a finding with the lines of its location, if that has callers."""
    site = finding.site
    if not site.stack or site.file is None or site.source_line is None:
        return finding
    places = [*reversed(site.stack), (site.file, site.source_line)]
    lines = (TracebackLine(file, line, text=_text(debugger, file, line)) for file, line in places)
    return replace(finding, source=SourceTraceback(tuple(lines)))


def _text(debugger: Debugger, file: str, line: int) -> str:
    return source_text(debugger.program, Location(file, line))


class _Sources:
    """The source of a recorded step around the statements of its run."""

    def __init__(self, debugger: Debugger, trace: SourceTrace) -> None:
        self._debugger = debugger
        self._end, self._ended = debugger.timeline.tick, debugger.ended
        self._trace = trace
        self._order = SourceOrder(debugger.loaded.program, trace)
        listing = debugger.loaded.listing
        self._lines = [listing.line(path, pc) for path, pc in self._order.places]
        self._numbers = {line: number for number, line in enumerate(self._lines)}

    def entered(self, finding: WatchFinding) -> WatchFinding:
        """Return a finding with its source, if a line of the user ran its statement."""
        is_input = not finding.site.op
        site = finding.used.site if is_input and finding.used is not None else finding.site
        number = self._numbers.get(site.line or 0)
        visit = NO_VISIT if number is None else self._trace.statements[number]
        if number is None or visit == NO_VISIT:
            return finding
        here = self._trace.visits[visit]
        shown = visit if here.of == NO_VISIT else here.of
        lines = tuple(self._line(each) for each in self._order.stack_of(shown))
        part = "first used by" if is_input else ""
        if here.parameter:
            part = f"update of {here.parameter} by"
        elif here.of != NO_VISIT:
            part = "backward of"
        in_full = finding.trips or finding.role != "propagated" or is_input
        names = tuple(self._names(number, visit, lines[-1].text)) if in_full else ()
        return replace(finding, source=SourceTraceback(lines, part, names))

    def _line(self, visit: int) -> TracebackLine:
        file, here = self._trace.file(visit), self._trace.visits[visit]
        # An update is a call by the line that it belongs to.
        function = self._trace.function(self._order.caller(visit) if here.parameter else visit)
        return TracebackLine(file, here.line, function, _text(self._debugger, file, here.line))

    def _names(self, number: int, visit: int, text: str) -> Iterator[Operand]:
        """Yield the names of the line of a visit with their values, when a statement of it has run."""
        here = self._trace.visits[visit]
        if here.parameter:
            states = [
                each for each in self._debugger.program.states if here.parameter in (each.value.name, each.of)
            ]
            self.go_before(number)
            yield from self._values({each.value.name: each.value.name for each in states})
            return
        after = self._order.last[visit] + 1
        names = names_on(text, self._order.names_at(visit, after))
        earlier = names_on(text, self._order.names_at(visit, number))
        changed = {
            f"{name} before": value for name, value in earlier.items() if names.get(name, value) != value
        }
        self.go_before(after)
        yield from self._values({**changed, **earlier, **names})

    def go_before(self, number: int | None = None) -> None:
        """Go to where a statement runs next, or to the end.  A run that has not ended stays where it is."""
        if self._ended:
            self._debugger.go_to(self._end)
            if number is not None and number < len(self._lines):
                self._debugger.go_to_line(self._lines[number])

    def _values(self, names: Mapping[str, str]) -> Iterator[Operand]:
        for name, value in [*names.items()][:_MOST_NAMES]:
            try:
                array = self._debugger.value(spelled(value))
            except NncdbgError:
                continue  # It was dropped, or the run has failed before it.
            kind = type_of(array)
            stats = None if array.dtype.hasobject else summarize(array)
            yield Operand(name, None if kind is None else str(kind), stats)
