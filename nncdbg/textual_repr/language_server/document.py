"""An open document: its text, its analysis and its diagnostics.

Interface for features (all lines and columns are 0-based, columns in characters; `ColumnEncoding` converts
them to the client's units). A statement may have several lines: features see it at its first line, with
columns that count from there through the line ends; `Document.range` finds its lines again.

* ``document.lines``: the text, line by line; ``document.row(line)``: the statement that begins at a line;
  ``document.change(...)`` applies the client's changes; ``document.version``.
* ``document.analysis``: the `Analysis` of the current text, updated on access.  An update only processes
  the changed graphs, and reuses the results of unchanged lines in them.  ``document.read_on(seconds)``
  performs a part of the update.
* ``tokens(text, prefixes)``, ``mentions(text, prefixes)`` and ``arguments(text)`` of `tokens`: the tokens,
  value names and arguments of any statement, valid or not.

``Analysis`` answers queries by position:

* ``lines``: the statements, each at its first line; ``first_lines``, ``last_lines``: those of statements of
  several lines.
* ``graphs``: name to `Chunk`, the lines from one ``graph`` line to the next; ``chunk_at(line)``; ``opsets``.
* ``prefixes_at(line)``: the prefixes of names, which depend on the module of the graph; ``states``;
  ``passed``: the values that pass between graphs by ``...``.
* ``block_at(line)``: the parser's `Block` around a line (``kind``, ``parent``, ``names``, ...), or None.
* ``node_at(line)`` / ``constant_at(line)``: the statement of a line, as a record.
* ``mention_at(line, column)``, ``token_at(line, column)``: the name or the token under a cursor.
* ``definition_of(line, mention)``: the `Definition` of a name; ``definition(block, name, line)``;
  ``type_of(line, name)``.
* ``references(definition)``: every `Span` of a value, its definition included; ``graph_references(name)``:
  those of a graph, its header first.
* ``calls(chunk)``, ``calls_of(name)``: the calls in a graph, and of a graph, each with span and caller.
* ``problems``: all diagnostics.

``Analysis`` is immutable: a handler may keep one while the text changes.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from lsprotocol import types

from nncdbg.process.collector import collector_paused
from nncdbg.textual_repr.language_server.analysis import Analysis
from nncdbg.textual_repr.language_server.analyzer import Analyzer, Steps
from nncdbg.textual_repr.language_server.tokens import Definition, Span

# -- columns ---------------------------------------------------------------------------------------

_WIDTHS = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}


class ColumnEncoding:
    """The negotiated encoding of columns: ``utf-8``, ``utf-16`` or ``utf-32``."""

    def __init__(self, encoding: str = "utf-16") -> None:
        self._codec, self._width = _WIDTHS[encoding]

    def outwards(self, text: str, column: int) -> int:
        """Return the client's column of character `column` of a line."""
        if text.isascii():
            return column
        return len(text[:column].encode(self._codec, "surrogatepass")) // self._width

    def inwards(self, text: str, column: int) -> int:
        """Return the character at the client's `column`, rounded down and clamped to the end of the line."""
        if column <= 0:
            return 0
        if text.isascii():
            return min(column, len(text))
        data = text.encode(self._codec, "surrogatepass")[: column * self._width]
        return len(data.decode(self._codec, "ignore"))

    def position(self, text: str, line: int, column: int) -> types.Position:
        return types.Position(line, self.outwards(text, column))

    def range(self, text: str, span: Span) -> types.Range:
        """Return the client's range of a span in the line `text`."""
        return types.Range(
            self.position(text, span.line, span.start), self.position(text, span.line, span.end)
        )


# -- documents -------------------------------------------------------------------------------------

_line_end = re.compile(r"\r\n|\n|\r").split
"""Split text at the line ends of the protocol."""

Change: TypeAlias = "tuple[tuple[int, int, int, int] | None, str]"
"""The replaced (line, column, line, column) in the client's units (None: all), and the new text."""


class Document:
    """A text that is open in the editor."""

    def __init__(
        self, uri: str, text: str, version: int | None = None, units: ColumnEncoding | None = None
    ) -> None:
        self.uri = uri
        self.version = version
        self.units = units or ColumnEncoding()
        self.lines = split(text)
        self._analyzer = Analyzer()
        self._analysis: Analysis | None = None
        self._steps: Steps | None = None
        """The analysis of `lines` in progress."""
        self._first_lines: Mapping[int, int] = {}
        """Those of the last analysis."""
        self._before: tuple[Analysis, int] | None = None
        """The last analysis and the only line changed since; None if several lines changed."""

    def change(self, changes: Iterable[Change], version: int | None = None) -> None:
        """Apply changes in order."""
        for place, text in changes:
            within = place is not None and place[0] == place[2] and len(_line_end(text)) == 1
            self._note_line(place[0] if within and place is not None else None)
            self.lines = split(text) if place is None else self._replaced(place, text)
        self.version = version

    def _note_line(self, line: int | None) -> None:
        """Record a change inside `line`, or a larger one."""
        before, self._analysis, self._steps = self._analysis, None, None
        if line is None:
            self._before = None
        elif before is not None:
            self._before = before, line
        elif self._before is not None and self._before[1] != line:
            self._before = None

    def _replaced(self, place: tuple[int, int, int, int], text: str) -> list[str]:
        """Return the lines with `text` in place of a range; positions after the end are clamped to it."""
        first, start, last, end = place
        lines = self.lines
        if first >= len(lines):
            first, start = len(lines) - 1, len(lines[-1]) * 4
        if last >= len(lines):
            last, end = len(lines) - 1, len(lines[-1]) * 4
        head = lines[first][: self.units.inwards(lines[first], start)]
        tail = lines[last][self.units.inwards(lines[last], end) :]
        return [*lines[:first], *split(head + text + tail), *lines[last + 1 :]]

    @property
    def analysis(self) -> Analysis:
        """Return the analysis of the current text."""
        while self._analysis is None:
            self.read_on(math.inf)
        return self._analysis

    def read_on(self, seconds: float) -> bool:
        """Continue the analysis for about `seconds`, by at least one step; return True once complete."""
        if self._analysis is not None:
            return True
        if self._steps is None:
            self._steps = self._analyzer.steps(self.lines)
        until = time.perf_counter() + seconds
        with collector_paused():
            try:
                next(self._steps)
                while time.perf_counter() < until:
                    next(self._steps)
            except StopIteration as end:
                self._analysis, self._steps = end.value, None
                self._first_lines = end.value.first_lines
        return self._analysis is not None

    def at_hand(self, line: int) -> Analysis | None:
        """Return the analysis if complete; if only `line` has changed, the one from before the change."""
        if self._analysis is None and self._before is not None and self._before[1] == line:
            return self._before[0]
        return self._analysis

    def around(self, line: int) -> Analysis:
        """Return an analysis for requests about `line`; if only `line` has changed, the one from before.

        The response to a keystroke therefore does not wait for the text to be parsed again.
        """
        found = self.at_hand(line)
        return self.analysis if found is None else found

    def row(self, line: int) -> str:
        """Return the text of the statement that begins at a line."""
        text, after = self.lines[line], line + 1
        while self._first_lines.get(after) == line and after < len(self.lines):
            text += f"\n{self.lines[after]}"
            after += 1
        return text

    def place_in_statement(self, line: int, column: int) -> tuple[int, int]:
        """Return the first line of the statement at a place, and the column counted from there."""
        first = self._first_lines.get(line, line)
        return first, column + sum(len(text) + 1 for text in self.lines[first:line])

    def _position(self, line: int, column: int) -> types.Position:
        """Return the client's position of a column of the statement that begins at a line."""
        first = line
        while column > len(self.lines[line]) and self._first_lines.get(line + 1) == first:
            column -= len(self.lines[line]) + 1
            line += 1
        return self.units.position(self.lines[line], line, column)

    def range(self, span: Span) -> types.Range:
        """Return the client's range of a span."""
        return types.Range(self._position(span.line, span.start), self._position(span.line, span.end))

    def end_of(self, line: int) -> types.Position:
        """Return the client's position of the end of a line."""
        return self.units.position(self.lines[line], line, len(self.lines[line]))

    @property
    def text(self) -> str:
        """Return the whole text, with lines ended by ``\\n``."""
        return "\n".join(self.lines)


@dataclass(frozen=True, slots=True)
class Place:
    """A cursor in the statement that begins at `line`; `line` and `column` are 0-based."""

    document: Document
    analysis: Analysis
    line: int
    column: int

    @property
    def spell(self) -> Callable[[str], str]:
        """Return the function that writes the name of a value in this graph, without sigil."""
        return self.analysis.prefixes_at(self.line).spell

    @property
    def text(self) -> str:
        """Return the text of the statement."""
        return self.document.row(self.line)

    def range(self, span: Span) -> types.Range:
        """Return a span of the same document as a client range."""
        return self.document.range(span)

    def location(self, span: Span) -> types.Location:
        return types.Location(self.document.uri, self.range(span))

    def definition(self) -> Definition | None:
        """Return the definition of the value under the cursor."""
        mention = self.analysis.mention_at(self.line, self.column)
        return self.analysis.definition_of(self.line, mention) if mention is not None else None


def split(text: str) -> list[str]:
    """Return the lines of a text as the protocol counts them; a byte order mark becomes a blank."""
    return _line_end(" " + text[1:] if text.startswith("\ufeff") else text)


# -- edits -----------------------------------------------------------------------------------------


def changed_part(before: Sequence[Any], after: Sequence[Any]) -> tuple[slice, slice]:
    """Return the part of each sequence between their common start and their common end."""
    start = _same(before, after)
    same = _same(before[start:][::-1], after[start:][::-1])
    return slice(start, len(before) - same), slice(start, len(after) - same)


def _same(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Return the length of the common start of two sequences."""
    most, step = min(len(a), len(b)), 4096
    near = next((i for i in range(0, most, step) if a[i : i + step] != b[i : i + step]), most)
    return next((i for i in range(near, most) if a[i] != b[i]), most)


def replace_span(document: Document, span: Span, text: str) -> types.TextEdit:
    """Return an edit that replaces a part of a line."""
    return types.TextEdit(document.range(span), text)


def replace_lines(document: Document, first: int, last: int, lines: Sequence[str]) -> types.TextEdit:
    """Return an edit that replaces lines `first` to `last` by one or more lines."""
    return types.TextEdit(types.Range(types.Position(first, 0), document.end_of(last)), "\n".join(lines))


def remove_lines(document: Document, first: int, last: int) -> types.TextEdit:
    """Return an edit that removes lines `first` to `last` with the line end after them, or else before."""
    if last + 1 < len(document.lines):
        return types.TextEdit(types.Range(types.Position(first, 0), types.Position(last + 1, 0)), "")
    start = document.end_of(first - 1) if first else types.Position(0, 0)
    return types.TextEdit(types.Range(start, document.end_of(last)), "")


def insert_below(document: Document, line: int, lines: Sequence[str]) -> types.TextEdit:
    """Return an edit that inserts lines after `line`."""
    end = document.end_of(line)
    return types.TextEdit(types.Range(end, end), "".join(f"\n{text}" for text in lines))
