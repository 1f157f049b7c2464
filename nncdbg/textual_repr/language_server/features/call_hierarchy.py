"""Call hierarchy of graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types

from nncdbg.engine.text.lexemes import name_text
from nncdbg.textual_repr.language_server.analysis.analysis import CallSite, Chunk
from nncdbg.textual_repr.language_server.document.document import Document
from nncdbg.textual_repr.language_server.features.navigation import graph_at
from nncdbg.textual_repr.language_server.features.symbols import last_line

if TYPE_CHECKING:
    from nncdbg.textual_repr.language_server.server import NncServer, Place


def register(server: NncServer) -> None:
    """Register call hierarchy requests."""

    @server.feature(types.TEXT_DOCUMENT_PREPARE_CALL_HIERARCHY)
    def prepare(params: types.CallHierarchyPrepareParams) -> list[types.CallHierarchyItem] | None:
        place = server.place(params.text_document.uri, params.position)
        return prepared(place) if place is not None else None

    @server.feature(types.CALL_HIERARCHY_INCOMING_CALLS)
    def incoming(
        params: types.CallHierarchyIncomingCallsParams,
    ) -> list[types.CallHierarchyIncomingCall] | None:
        document = server.documents.get(params.item.uri)
        return incoming_calls(document, _name(params.item)) if document is not None else None

    @server.feature(types.CALL_HIERARCHY_OUTGOING_CALLS)
    def outgoing(
        params: types.CallHierarchyOutgoingCallsParams,
    ) -> list[types.CallHierarchyOutgoingCall] | None:
        document = server.documents.get(params.item.uri)
        return outgoing_calls(document, _name(params.item)) if document is not None else None


def prepared(place: Place) -> list[types.CallHierarchyItem] | None:
    """Return the graph name under the cursor, else the graph that contains the cursor."""
    analysis = place.analysis
    name = graph_at(place)
    chunk = analysis.graphs.get(name) if name is not None else analysis.chunk_at(place.line)
    return [_item(place.document, chunk)] if chunk is not None and chunk.name else None


def incoming_calls(document: Document, name: str) -> list[types.CallHierarchyIncomingCall]:
    """Return the callers of a graph, each with its call sites."""
    analysis = document.analysis
    found: dict[Chunk, list[types.Range]] = {}
    for site in analysis.calls_of(name):
        found.setdefault(site.caller, []).append(_range(document, site))
    return [
        types.CallHierarchyIncomingCall(_item(document, caller), places) for caller, places in found.items()
    ]


def outgoing_calls(document: Document, name: str) -> list[types.CallHierarchyOutgoingCall]:
    """Return the callees of a graph, each with its call sites."""
    analysis = document.analysis
    chunk = analysis.graphs.get(name)
    found: dict[str, list[types.Range]] = {}
    for site in analysis.calls(chunk) if chunk is not None else ():
        if site.name in analysis.graphs:
            found.setdefault(site.name, []).append(_range(document, site))
    return [
        types.CallHierarchyOutgoingCall(_item(document, analysis.graphs[called]), places)
        for called, places in found.items()
    ]


def _name(item: types.CallHierarchyItem) -> str:
    """Return the graph name of an item, unquoted."""
    return item.data if isinstance(item.data, str) else item.name.removeprefix("@")


def _item(document: Document, chunk: Chunk) -> types.CallHierarchyItem:
    lines = document.analysis.lines
    last = last_line(chunk)
    whole = types.Range(
        types.Position(chunk.start, 0), document.units.position(lines[last], last, len(lines[last]))
    )
    selection = document.units.range(lines[chunk.start], document.analysis.header_span(chunk))
    return types.CallHierarchyItem(
        f"@{name_text(chunk.name)}",
        types.SymbolKind.Function,
        document.uri,
        whole,
        selection,
        data=chunk.name,
    )


def _range(document: Document, site: CallSite) -> types.Range:
    return document.units.range(document.analysis.lines[site.span.line], site.span)
