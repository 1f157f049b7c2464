"""Breakpoint requests of a client: lines, functions, data, instructions."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nncdbg.dap_server.breakpoints.client_breakpoints import PlacedBreakpoint, Site, Terms
from nncdbg.dap_server.client import MAX_NUMBER
from nncdbg.dap_server.protocol import Source
from nncdbg.dap_server.sources.addresses import reference_of, statement_at
from nncdbg.errors import UsageError
from nncdbg.target.breakpoint_syntax import split_place, split_source
from nncdbg.target.records import Place
from nncdbg.text.listing import Listing

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.ir.source_trace import SourceFunction
    from nncdbg.target.stops import StopPoint

_SHOWN = 5
"""Most lines listed in a message."""


@dataclass(frozen=True, slots=True)
class LineRequest:
    """A line, counted from 1, of a file, or of the numbered source `reference`.

    With `column`, the answer includes the columns of the statement.
    """

    path: str | None
    reference: int
    line: int
    column: bool
    terms: Terms

    def requested_location(self, session: Session) -> dict[str, Any]:
        line = session.client.outgoing_line(self.line)
        where = {"line": line} if 0 <= line <= MAX_NUMBER else {}
        return {**where, "source": self._source()}

    def _source(self) -> Source:
        if self.reference:
            return Source(source_reference=self.reference)
        return Source(name=os.path.basename(self.path or ""), path=self.path)

    def place(self, session: Session, before: Site | None) -> PlacedBreakpoint:
        listing = self._listing(session, before)
        if listing is session.program.target.listing:
            return self._in_listing(session)
        if listing is not None:
            return self._in_micro_program(session, listing)
        path = session.program.sources.file_of(self._source()) if self.reference else self.path
        if path is None:
            raise UsageError(
                "this source is not part of the program", hint="request the sources with `loadedSources`"
            )
        return self._in_model(session, path)

    def _listing(self, session: Session, before: Site | None) -> Listing | None:
        """The requested text; a number refers to the same text as on the program before."""
        if isinstance(before, tuple):
            return before[0]
        return session.program.sources.listing(self._source())

    def _in_listing(self, session: Session) -> PlacedBreakpoint:
        point = break_at(session, self.terms, "line", self.line)
        return self._placed_in(session, point, session.program.target.listing, point.lines[0], point.note)

    def _in_micro_program(self, session: Session, listing: Listing) -> PlacedBreakpoint:
        place = listing.next_site(self.line)
        if place is None:
            raise UsageError(f"there is no statement at or after line {self.line}")
        site = listing, place[0]
        point = break_at(session, self.terms, "site", site)
        moved = f"line {self.line} has no statement; moved to line {place[0]}"
        note = moved if place[0] != self.line else ""
        return self._placed_in(session, point, listing, place[0], note, site)

    def _in_model(self, session: Session, path: str) -> PlacedBreakpoint:
        """Break at a line of the user's own source: at every statement that comes from it."""
        program = session.program
        text = program.sources.of_program
        if not program.target.stops.lines_of(path):
            name = os.path.basename(path)
            raise UsageError(
                f"no statement in the program comes from {name}",
                hint=f"set the breakpoint in {text.path or text.name}",
            )
        point = break_at(session, self.terms, "source", (path, self.line))
        there = int(point.place.rpartition(":")[2])
        many = "1 statement comes" if len(point.lines) == 1 else f"{len(point.lines)} statements come"
        words = f"{many} from here: {lines_in_words(point.lines)} of {text.name}"
        note = f"{point.note}; {words}" if point.note else words
        return PlacedBreakpoint(
            point, {"line": session.client.outgoing_line(there), "source": self._source(), "message": note}
        )

    def _placed_in(
        self,
        session: Session,
        point: StopPoint,
        listing: Listing,
        line: int,
        note: str,
        site: Site | None = None,
    ) -> PlacedBreakpoint:
        where: dict[str, Any] = {"line": session.client.outgoing_line(line), "source": self._source()}
        if self.column:
            where |= columns(session, listing, line)
        return PlacedBreakpoint(point, where | ({"message": note} if note else {}), site)


@dataclass(frozen=True, slots=True)
class FunctionRequest:
    """An op (`Softmax`), a graph, layer or loop (`@layer1`), or a value (`%h`); sigils are optional."""

    name: str
    terms: Terms

    def requested_location(self, session: Session) -> dict[str, Any]:
        return {}

    def place(self, session: Session, before: Site | None) -> PlacedBreakpoint:
        point = break_at(session, self.terms, *_function(self.name))
        what = {"graph": "blocks", "value": "definitions"}.get(point.kind, "statements")
        return _placed_at_lines(session, point, f"{len(point.lines)} {what}:")


@dataclass(frozen=True, slots=True)
class DataRequest:
    """A write to a value, or a line that binds a name of the user's source.

    `data_id` is ``%h`` or ``%h: CONDITION``, as `data_id` makes it, or as `binding_id` does.
    """

    data_id: str
    access: str | None
    terms: Terms

    def requested_location(self, session: Session) -> dict[str, Any]:
        return {}

    def watched(self) -> tuple[str, str | None]:
        """Return the name of the value, and the condition.  Raises UsageError for what cannot be watched."""
        if self.access not in (None, "write"):
            raise UsageError(
                f"cannot stop when a value is {_ACCESSES.get(self.access, self.access)}",
                hint="set breakpoints on the statements that read the value, or use the access type `write`",
            )
        name, when = _parse_data_id(self.data_id)
        conditions = [each for each in (when, self.terms.when) if each]
        together = conditions[0] if len(conditions) == 1 else " and ".join(f"({each})" for each in conditions)
        return name, together or None

    def place(self, session: Session, before: Site | None) -> PlacedBreakpoint:
        if (bound := _BINDING_ID.fullmatch(self.data_id)) is not None:
            function = bound["file"], bound["function"]
            stops, terms = session.program.target.stops, self.terms
            point = stops.watch_name(bound["name"], function, terms.when, terms.hits)
            return _placed_at_lines(session, point, "bound before")
        name, when = self.watched()
        point = session.program.target.stops.set_at("data", name, when, self.terms.hits)
        return _placed_at_lines(session, point, "written at")


def _placed_at_lines(session: Session, point: StopPoint, words: str) -> PlacedBreakpoint:
    """Show it at the first of its lines in the program; if there are more, `words` precede them."""
    where: dict[str, Any] = {
        "line": session.client.outgoing_line(point.lines[0]),
        "source": session.program.sources.of_program,
    }
    if len(point.lines) > 1:
        where["message"] = f"{words} {lines_in_words(point.lines)}"
    return PlacedBreakpoint(point, where)


_ACCESSES = {"read": "read", "readWrite": "read or written"}

_DATA_ID = re.compile(r'(?P<value>%(?:"(?:[^"\\]|\\.)*"|\S+?))(?:: (?P<when>.+))?', re.DOTALL)

_BINDING_ID = re.compile(r"(?P<name>[^%].*) in (?P<function>\S+) \((?P<file>.+)\)")


def binding_id(name: str, function: SourceFunction) -> str:
    """`h in Block.forward (train.py)`: a name of a function of the user's source."""
    return f"{name} in {function[1]} ({function[0]})"


def data_id(value: str, when: str | None = None) -> str:
    """`%h`, or `%h: std(%h) > 10`; `value` includes its sigil."""
    return f"{value}: {when}" if when else value


def _parse_data_id(text: str) -> tuple[str, str | None]:
    match = _DATA_ID.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a valid dataId", hint="request the dataId with dataBreakpointInfo")
    return split_place(match["value"])[1], match["when"]


@dataclass(frozen=True, slots=True)
class InstructionRequest:
    """The statement `offset` statements after an address; micro programs have addresses too."""

    reference: str
    offset: int
    terms: Terms

    def requested_location(self, session: Session) -> dict[str, Any]:
        where = {"offset": self.offset} if abs(self.offset) <= MAX_NUMBER else {}
        return {**where, "instruction_reference": self.reference}

    def place(self, session: Session, before: Site | None) -> PlacedBreakpoint:
        there = statement_at(session, self.reference, self.offset)
        if there is not None:
            point = break_at(session, self.terms, "site", there)
            return PlacedBreakpoint(point, self._where(session, there), there)
        if isinstance(before, Place) and before.micro is None:
            # An address of the run before; the statement is the same one.
            point = break_at(session, self.terms, "site", before)
            now = session.program.target.place(before.path, before.pc)
            return PlacedBreakpoint(point, self._where(session, now) if now.block else {}, now)
        raise UsageError(f"there is no statement at {self.reference}", hint="disassemble again")

    def _where(self, session: Session, place: Place) -> dict[str, Any]:
        where: dict[str, Any] = {"instruction_reference": reference_of(session, place)}
        if place.micro is None:
            where |= {
                "line": session.client.outgoing_line(place.line),
                "source": session.program.sources.of_program,
            }
        return where


def break_at(session: Session, terms: Terms, kind: str, place: Any) -> StopPoint:
    """Set a breakpoint at one place of a kind (see `ProgramStops.set_at`), with the client's conditions."""
    return session.program.target.stops.set_at(kind, place, terms.when, terms.hits, terms.log)


def split_condition(name: str, condition: str | None) -> tuple[str, str | None]:
    """Return the name and the condition of a function breakpoint, as in `aten.tanh if $step == 2`.

    VS Code has no field for the condition of a function breakpoint.
    """
    function, word, rest = name.partition(" if ")
    return (function.strip(), rest.strip()) if word and not condition else (name, condition or None)


def _function(text: str) -> tuple[str, Any]:
    """Return the kind and the place of a function breakpoint, as `break_at` takes them."""
    kind, name, rest = split_place(text)
    if rest:
        raise UsageError(
            f"{text!r} is not a valid name", hint="use an op (Softmax), a graph (@layer1) or a value (%h)"
        )
    return (kind, split_source(name)) if kind == "source" else ("name" if kind == "line" else kind, name)


def lines_in_words(lines: tuple[int, ...]) -> str:
    """`line 4`, `lines 4, 5 and 9`, `lines 4, 5, 9, 11, 12 and 40 more`."""
    if len(lines) == 1:
        return f"line {lines[0]}"
    if len(lines) > _SHOWN + 1:
        return f"lines {', '.join(map(str, lines[:_SHOWN]))} and {len(lines) - _SHOWN} more"
    return f"lines {', '.join(map(str, lines[:-1]))} and {lines[-1]}"


def columns(session: Session, listing: Listing, line: int) -> dict[str, int]:
    """Columns at which the statement of a line begins and ends."""
    text = listing.lines[line - 1]
    first = len(text) - len(text.lstrip()) + 1
    return {
        "column": session.client.outgoing_column(first),
        "end_column": session.client.outgoing_column(len(text.rstrip()) + 1),
    }
