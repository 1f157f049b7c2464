"""Breakpoint requests of a client: lines, functions, data, instructions."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nncdbg.dap_server.breakpoints.client_breakpoints import PlacedBreakpoint, Terms
from nncdbg.dap_server.client import MAX_NUMBER
from nncdbg.dap_server.protocol import Source
from nncdbg.dap_server.sources.addresses import reference_of, statement_at
from nncdbg.errors import UsageError
from nncdbg.target.breakpoint_syntax import split_place, split_source
from nncdbg.text.listing import Listing

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.compilation.code import Code
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.stopping import breakpoints as engine

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

    def place(self, session: Session, before: engine.Place | None) -> PlacedBreakpoint:
        listing = self._listing(session, before)
        if listing is session.program.debugger.loaded.listing:
            return self._in_listing(session)
        if listing is not None:
            return self._in_micro_program(session, listing)
        if self.path is None:
            raise UsageError(
                "this source is not part of the program", hint="request the sources with `loadedSources`"
            )
        return self._in_model(session)

    def _listing(self, session: Session, before: engine.Place | None) -> Listing | None:
        """The requested text; a number refers to the same text as on the program before."""
        if before is not None and isinstance(before[0], Listing):
            return before[0]
        return session.program.sources.listing(self._source())

    def _in_listing(self, session: Session) -> PlacedBreakpoint:
        debugger = session.program.debugger
        found = break_at(debugger, self.terms, line=self.line)
        return self._placed_in(session, found, debugger.loaded.listing, found.lines[0], found.note)

    def _in_micro_program(self, session: Session, listing: Listing) -> PlacedBreakpoint:
        place = listing.next_site(self.line)
        if place is None:
            raise UsageError(f"there is no statement at or after line {self.line}")
        found = break_at(session.program.debugger, self.terms, site=(listing, place[0]))
        moved = f"line {self.line} has no statement; moved to line {place[0]}"
        return self._placed_in(session, found, listing, place[0], moved if place[0] != self.line else "")

    def _in_model(self, session: Session) -> PlacedBreakpoint:
        """Break at a line of the user's own source: at every statement that comes from it."""
        program, path = session.program, self.path
        text = program.sources.of_program
        assert path is not None
        if not program.debugger.breakpoints.placement.origin(path):
            name = os.path.basename(path)
            raise UsageError(
                f"no statement in the program comes from {name}",
                hint=f"set the breakpoint in {text.path or text.name}",
            )
        found = break_at(program.debugger, self.terms, source=(path, self.line))
        there = int(found.target.rpartition(":")[2])
        many = "1 statement comes" if len(found.lines) == 1 else f"{len(found.lines)} statements come"
        words = f"{many} from here: {lines_in_words(found.lines)} of {text.name}"
        note = f"{found.note}; {words}" if found.note else words
        return PlacedBreakpoint(
            found, {"line": session.client.outgoing_line(there), "source": self._source(), "message": note}
        )

    def _placed_in(
        self, session: Session, found: engine.Breakpoint, listing: Listing, line: int, note: str
    ) -> PlacedBreakpoint:
        where: dict[str, Any] = {"line": session.client.outgoing_line(line), "source": self._source()}
        if self.column:
            where |= columns(session, listing, line)
        return PlacedBreakpoint(found, where | ({"message": note} if note else {}))


@dataclass(frozen=True, slots=True)
class FunctionRequest:
    """An op (`Softmax`), a graph, layer or loop (`@layer1`), or a value (`%h`); sigils are optional."""

    name: str
    terms: Terms

    def requested_location(self, session: Session) -> dict[str, Any]:
        return {}

    def place(self, session: Session, before: engine.Place | None) -> PlacedBreakpoint:
        program = session.program
        found = break_at(program.debugger, self.terms, **_function(self.name))
        what = {"graph": "blocks", "value": "definitions"}.get(found.kind, "statements")
        return _placed_at_lines(session, found, f"{len(found.lines)} {what}:")


@dataclass(frozen=True, slots=True)
class DataRequest:
    """A write to a value: `data_id` is ``%h`` or ``%h: CONDITION``, as `data_id` makes it."""

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

    def place(self, session: Session, before: engine.Place | None) -> PlacedBreakpoint:
        name, when = self.watched()
        program = session.program
        found = program.debugger.watch_value(name, when, self.terms.hits)
        return _placed_at_lines(session, found, "written at")


def _placed_at_lines(session: Session, found: engine.Breakpoint, words: str) -> PlacedBreakpoint:
    """Show it at the first of its lines in the program; if there are more, `words` precede them."""
    where: dict[str, Any] = {
        "line": session.client.outgoing_line(found.lines[0]),
        "source": session.program.sources.of_program,
    }
    if len(found.lines) > 1:
        where["message"] = f"{words} {lines_in_words(found.lines)}"
    return PlacedBreakpoint(found, where)


_ACCESSES = {"read": "read", "readWrite": "read or written"}

_DATA_ID = re.compile(r'(?P<value>%(?:"(?:[^"\\]|\\.)*"|\S+?))(?:: (?P<when>.+))?', re.DOTALL)


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

    def place(self, session: Session, before: engine.Place | None) -> PlacedBreakpoint:
        debugger = session.program.debugger
        there = statement_at(session, self.reference, self.offset)
        if there is not None:
            code, pc = there
            found = break_at(debugger, self.terms, site=(code if code.formula is not None else code.path, pc))
            return PlacedBreakpoint(found, self._where(session, code, pc))
        if before is not None and isinstance(before[0], tuple):
            # An address of the run before; the statement is the same one.
            found = break_at(debugger, self.terms, site=before)
            code_now = next((each for each, _, _ in found.sites), None)
            where = self._where(session, code_now, before[1]) if code_now is not None else {}
            return PlacedBreakpoint(found, where)
        raise UsageError(f"there is no statement at {self.reference}", hint="disassemble again")

    def _where(self, session: Session, code: Code, pc: int) -> dict[str, Any]:
        where: dict[str, Any] = {"instruction_reference": reference_of(session, code, pc)}
        line = session.program.debugger.loaded.line(code, pc)
        if code.formula is None and line is not None:
            where |= {
                "line": session.client.outgoing_line(line),
                "source": session.program.sources.of_program,
            }
        return where


def break_at(debugger: Debugger, terms: Terms, **place: Any) -> engine.Breakpoint:
    """Set a breakpoint at one place, with the client's conditions."""
    return debugger.break_at(**place, when=terms.when, hits=terms.hits, log=terms.log)


def split_condition(name: str, condition: str | None) -> tuple[str, str | None]:
    """Return the name and the condition of a function breakpoint, as in `aten.tanh if $step == 2`.

    VS Code has no field for the condition of a function breakpoint.
    """
    function, word, rest = name.partition(" if ")
    return (function.strip(), rest.strip()) if word and not condition else (name, condition or None)


def _function(text: str) -> dict[str, Any]:
    """Return the place of a function breakpoint, as `break_at` takes it."""
    kind, name, rest = split_place(text)
    if rest:
        raise UsageError(
            f"{text!r} is not a valid name", hint="use an op (Softmax), a graph (@layer1) or a value (%h)"
        )
    return {"source": split_source(name)} if kind == "source" else {"name" if kind == "line" else kind: name}


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
