"""Inlay hints with inferred types, and code lenses above graphs: debug, size, and number of calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lsprotocol import types

from nncdbg.text.counting import counted
from nncdbg.text.types import print_type
from nncdbg.textual_repr.language_server.analysis import Analysis, Chunk
from nncdbg.textual_repr.language_server.document import Document
from nncdbg.textual_repr.language_server.tokens import Definition, Span

if TYPE_CHECKING:
    from nncdbg.textual_repr.language_server.server import NncServer


def register(server: NncServer) -> None:
    """Register inlay hints, code lenses."""

    @server.feature(types.TEXT_DOCUMENT_INLAY_HINT)
    def hints(params: types.InlayHintParams) -> list[types.InlayHint]:
        document = server.documents.get(params.text_document.uri)
        return inlay_hints(document, params.range) if document is not None else []

    @server.feature(types.TEXT_DOCUMENT_CODE_LENS, types.CodeLensOptions(resolve_provider=False))
    def lenses(params: types.CodeLensParams) -> list[types.CodeLens]:
        document = server.documents.get(params.text_document.uri)
        return list(code_lenses(document)) if document is not None else []


# -- code lenses -----------------------------------------------------------------------------------

DEBUG_GRAPH = "nncdbg.debugGraph"
"""The client command that debugs a document; its arguments are the URI and the entry graph name."""

SHOW_REFERENCES = "nncdbg.showReferences"
"""The client command that lists references; its arguments are a URI, a position and the locations."""


def code_lenses(document: Document) -> Iterator[types.CodeLens]:
    """Yield lenses for each graph in text order; the first graph is the entry."""
    analysis = document.analysis
    calls: dict[str, list[types.Location]] = {name: [] for name in analysis.graphs}
    for chunk in analysis.chunks:
        for site in analysis.calls(chunk):
            if site.name in calls:
                place = document.units.range(analysis.lines[site.span.line], site.span)
                calls[site.name].append(types.Location(document.uri, place))
    for order, (name, chunk) in enumerate(analysis.graphs.items()):
        place = document.units.range(analysis.lines[chunk.start], analysis.header_span(chunk))
        if order == 0:
            yield types.CodeLens(place, types.Command("Debug graph", DEBUG_GRAPH, None, [document.uri, name]))
        yield types.CodeLens(place, types.Command(counted(statements(chunk), "statement", ","), ""))
        if order or calls[name]:
            arguments = [document.uri, place.start, calls[name]]
            shown = counted(len(calls[name]), "call", ",")
            yield types.CodeLens(place, types.Command(shown, SHOW_REFERENCES, None, arguments))


def statements(chunk: Chunk) -> int:
    """Return the number of statements of a graph (possible stops), nested blocks and last lines included."""
    blocks = [block for block in chunk.reading.opened if block.kind != "broken"]
    return sum(len(block.lines) + bool(block.end) for block in blocks)


# -- inlay hints -----------------------------------------------------------------------------------


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
