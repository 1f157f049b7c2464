"""Changes of whole lines, and of pieces of lines, as the protocol has them."""

from __future__ import annotations

from collections.abc import Sequence

from lsprotocol import types

from nncdbg.textual_repr.language_server.document.document import Document
from nncdbg.textual_repr.language_server.document.records import Span


def replace_span(document: Document, span: Span, text: str) -> types.TextEdit:
    """Other text in place of a piece of a line."""
    return types.TextEdit(document.units.range(document.lines[span.line], span), text)


def replace_lines(document: Document, first: int, last: int, lines: Sequence[str]) -> types.TextEdit:
    """Other lines, of which there is one at least, in place of lines `first` to `last`."""
    return types.TextEdit(types.Range(types.Position(first, 0), _end(document, last)), "\n".join(lines))


def remove_lines(document: Document, first: int, last: int) -> types.TextEdit:
    """Lines `first` to `last` go, with the line end behind them, or else the one before."""
    if last + 1 < len(document.lines):
        return types.TextEdit(types.Range(types.Position(first, 0), types.Position(last + 1, 0)), "")
    start = _end(document, first - 1) if first else types.Position(0, 0)
    return types.TextEdit(types.Range(start, _end(document, last)), "")


def insert_below(document: Document, line: int, lines: Sequence[str]) -> types.TextEdit:
    """New lines behind `line`."""
    end = _end(document, line)
    return types.TextEdit(types.Range(end, end), "".join(f"\n{text}" for text in lines))


def _end(document: Document, line: int) -> types.Position:
    text = document.lines[line]
    return document.units.position(text, line, len(text))
