"""Code lenses above a graph: debug, size, and number of calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lsprotocol import types

from nncdbg.engine.text.counting import counted
from nncdbg.textual_repr.language_server.analysis.analysis import Chunk
from nncdbg.textual_repr.language_server.document.document import Document

if TYPE_CHECKING:
    from nncdbg.textual_repr.language_server.server import NncServer

DEBUG_GRAPH = "nncdbg.debugGraph"
"""The client command that debugs a document; its arguments are the URI and the entry graph name."""

SHOW_REFERENCES = "nncdbg.showReferences"
"""The client command that lists references; its arguments are a URI, a position and the locations."""


def register(server: NncServer) -> None:
    """Register code lenses."""

    @server.feature(types.TEXT_DOCUMENT_CODE_LENS, types.CodeLensOptions(resolve_provider=False))
    def lenses(params: types.CodeLensParams) -> list[types.CodeLens]:
        document = server.documents.get(params.text_document.uri)
        return list(code_lenses(document)) if document is not None else []


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
