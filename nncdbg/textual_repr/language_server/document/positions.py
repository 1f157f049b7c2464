"""Conversion of columns between the client's units (UTF-16 unless negotiated) and characters."""

from __future__ import annotations

from lsprotocol import types

from nncdbg.textual_repr.language_server.document.records import Span

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
