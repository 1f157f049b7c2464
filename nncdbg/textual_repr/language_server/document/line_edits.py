"""Edits of whole lines and parts of lines, as protocol objects."""

from __future__ import annotations

from collections.abc import Sequence

from lsprotocol import types

from nncdbg.textual_repr.language_server.document.document import Document
from nncdbg.textual_repr.language_server.document.records import Span


def replace_span(document: Document, span: Span, text: str) -> types.TextEdit:
    """Return an edit that replaces a part of a line."""
    return types.TextEdit(document.units.range(document.lines[span.line], span), text)


def replace_lines(document: Document, first: int, last: int, lines: Sequence[str]) -> types.TextEdit:
    """Return an edit that replaces lines `first` to `last` by one or more lines."""
    return types.TextEdit(types.Range(types.Position(first, 0), _end(document, last)), "\n".join(lines))


def remove_lines(document: Document, first: int, last: int) -> types.TextEdit:
    """Return an edit that removes lines `first` to `last` with the line end after them, or else before."""
    if last + 1 < len(document.lines):
        return types.TextEdit(types.Range(types.Position(first, 0), types.Position(last + 1, 0)), "")
    start = _end(document, first - 1) if first else types.Position(0, 0)
    return types.TextEdit(types.Range(start, _end(document, last)), "")


def insert_below(document: Document, line: int, lines: Sequence[str]) -> types.TextEdit:
    """Return an edit that inserts lines after `line`."""
    end = _end(document, line)
    return types.TextEdit(types.Range(end, end), "".join(f"\n{text}" for text in lines))


def _end(document: Document, line: int) -> types.Position:
    text = document.lines[line]
    return document.units.position(text, line, len(text))
