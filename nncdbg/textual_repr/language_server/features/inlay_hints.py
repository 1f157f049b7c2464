"""Inlay hints: inferred types, shown after names without a written type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lsprotocol import types

from nncdbg.engine.text.types import print_type
from nncdbg.textual_repr.language_server.analysis.analysis import Analysis
from nncdbg.textual_repr.language_server.document.document import Document
from nncdbg.textual_repr.language_server.document.records import Definition, Span

if TYPE_CHECKING:
    from nncdbg.textual_repr.language_server.server import NncServer


def register(server: NncServer) -> None:
    """Register inlay hints."""

    @server.feature(types.TEXT_DOCUMENT_INLAY_HINT)
    def hints(params: types.InlayHintParams) -> list[types.InlayHint]:
        document = server.documents.get(params.text_document.uri)
        return inlay_hints(document, params.range) if document is not None else []


def inlay_hints(document: Document, range: types.Range) -> list[types.InlayHint]:
    """Return a hint per untyped definition with a known type; accepting a hint inserts the type."""
    last = min(range.end.line, len(document.lines) - 1)
    found = untyped(document.analysis, range.start.line, last)
    return [_hint(document, definition) for definition in found]


def untyped(analysis: Analysis, first: int, last: int) -> Iterator[Definition]:
    """Yield the definitions in lines `first` to `last` without a written type, but with a known type."""
    for line in range(first, last + 1):
        for mention in analysis.mentions(line):
            found = analysis.definition_of(line, mention) if mention.defines else None
            if found is None or found.written is not None or found.type is None:
                continue
            if found.span == Span(line, mention.start, mention.end):
                yield found


def _hint(document: Document, definition: Definition) -> types.InlayHint:
    assert definition.type is not None
    span = definition.span
    position = document.units.position(document.lines[span.line], span.line, span.end)
    text = f": {print_type(definition.type)}"
    return types.InlayHint(
        position,
        text,
        kind=types.InlayHintKind.Type,
        text_edits=[types.TextEdit(types.Range(position, position), text)],
    )
