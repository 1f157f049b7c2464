"""Definitions, references and highlights of names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lsprotocol import types

from nncdbg.textual_repr.language_server.document.records import Span
from nncdbg.textual_repr.language_server.document.tokens import mentions

if TYPE_CHECKING:
    from nncdbg.textual_repr.language_server.server import NncServer, Place


def register(server: NncServer) -> None:
    """Register go to definition, find references and highlight."""

    @server.feature(types.TEXT_DOCUMENT_DEFINITION)
    def definition(params: types.DefinitionParams) -> types.Location | None:
        place = server.place(params.text_document.uri, params.position)
        span = None if place is None else definition_span(place)
        return place.location(span) if place is not None and span is not None else None

    @server.feature(types.TEXT_DOCUMENT_REFERENCES)
    def references(params: types.ReferenceParams) -> list[types.Location]:
        place = server.place(params.text_document.uri, params.position)
        if place is None:
            return []
        own = None if params.context.include_declaration else definition_span(place)
        return [place.location(span) for span in reference_spans(place) if span != own]

    @server.feature(types.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT)
    def highlight(params: types.DocumentHighlightParams) -> list[types.DocumentHighlight]:
        place = server.place(params.text_document.uri, params.position)
        if place is None:
            return []
        return [
            types.DocumentHighlight(
                place.range(span),
                types.DocumentHighlightKind.Write
                if _defines(place, span)
                else types.DocumentHighlightKind.Read,
            )
            for span in reference_spans(place)
        ]


def graph_at(place: Place) -> str | None:
    """Return the graph name under the cursor, in its header or in a call."""
    token = place.analysis.token_at(place.line, place.column)
    return token.name if token is not None and token.kind == "graph" else None


def definition_span(place: Place) -> Span | None:
    """Return the definition of the value or graph under the cursor."""
    analysis = place.analysis
    name = graph_at(place)
    if name is not None:
        chunk = analysis.graphs.get(name)
        return analysis.header_span(chunk) if chunk is not None else None
    mention = analysis.mention_at(place.line, place.column)
    found = analysis.definition_of(place.line, mention) if mention is not None else None
    return found.span if found is not None else None


def reference_spans(place: Place) -> list[Span]:
    """Return all uses of the value or graph under the cursor; for an undefined value, those of its name."""
    analysis = place.analysis
    name = graph_at(place)
    if name is not None:
        return analysis.graph_references(name)
    mention = analysis.mention_at(place.line, place.column)
    if mention is None:
        return []
    found = analysis.definition_of(place.line, mention)
    return analysis.references(found) if found is not None else list(_undefined(place, mention.name))


def _undefined(place: Place, name: str) -> Iterator[Span]:
    chunk = place.analysis.chunk_at(place.line)
    for own, text in enumerate(chunk.lines):
        for mention in mentions(text, place.analysis.prefixes):
            if mention.name == name and place.analysis.definition_of(chunk.start + own, mention) is None:
                yield Span(chunk.start + own, mention.start, mention.end)


def _defines(place: Place, span: Span) -> bool:
    found = place.analysis.mention_at(span.line, span.start)
    return found.defines if found is not None else span == definition_span(place)
