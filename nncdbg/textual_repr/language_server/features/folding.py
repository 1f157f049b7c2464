"""Folding ranges and selection ranges."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from lsprotocol import types

from nncdbg.textual_repr.language_server.document.records import Span
from nncdbg.textual_repr.language_server.document.tokens import kind_of_line, tokens
from nncdbg.textual_repr.language_server.features.symbols import DEEPEST, block_ends

if TYPE_CHECKING:
    from nncdbg.textual_repr.language_server.document.document import Document
    from nncdbg.textual_repr.language_server.server import NncServer, Place


def register(server: NncServer) -> None:
    """Register folding ranges and selection ranges."""

    @server.feature(types.TEXT_DOCUMENT_FOLDING_RANGE)
    def folding(params: types.FoldingRangeParams) -> list[types.FoldingRange]:
        document = server.documents.get(params.text_document.uri)
        if document is None:
            return []
        return sorted([*_blocks(document), *_comments(document)], key=lambda found: found.start_line)

    @server.feature(types.TEXT_DOCUMENT_SELECTION_RANGE)
    def selection(params: types.SelectionRangeParams) -> list[types.SelectionRange]:
        places = (server.place(params.text_document.uri, position) for position in params.positions)
        return [_selection(place) for place in places if place is not None]


def _blocks(document: Document) -> Iterator[types.FoldingRange]:
    """Yield graphs, branches and bodies; their closing line stays visible."""
    for chunk in document.analysis.chunks:
        ends = block_ends(chunk)
        for block in chunk.reading.opened:
            first, last = chunk.line_of(block.line), chunk.start + ends.get(block, 0) - 1
            if last > first:
                yield types.FoldingRange(first, last, kind=types.FoldingRangeKind.Region)


def _comments(document: Document) -> Iterator[types.FoldingRange]:
    """Yield runs of two or more comment lines."""
    first = -1
    for line, text in enumerate([*document.lines, ""]):
        if text.lstrip().startswith("#"):
            first = line if first < 0 else first
            continue
        if 0 <= first < line - 1:
            yield types.FoldingRange(first, line - 1, kind=types.FoldingRangeKind.Comment)
        first = -1


def _selection(place: Place) -> types.SelectionRange:
    """Return nested ranges: the token, the line, the enclosing blocks from the inside out, the text."""
    document, analysis, line = place.document, place.analysis, place.line
    lines = analysis.lines
    end = types.Position(len(lines) - 1, document.units.outwards(lines[-1], len(lines[-1])))
    found = types.SelectionRange(types.Range(types.Position(0, 0), end))
    chunk = analysis.chunk_at(line)
    ends = block_ends(chunk)
    block = chunk.reading.blocks[line - chunk.start]
    if kind_of_line(lines[line]) != "}":
        block = analysis.block_opened_at(line) or block
    for around in reversed(list(islice(block.outwards(), DEEPEST)) if block is not None else []):
        first, last = chunk.line_of(around.line), chunk.start + ends.get(around, 0)
        place_of_last = document.units.position(lines[last], last, len(lines[last]))
        found = types.SelectionRange(types.Range(types.Position(first, 0), place_of_last), found)
    text = lines[line]
    whole = Span(line, len(text) - len(text.lstrip()), len(text.rstrip()))
    found = types.SelectionRange(place.range(whole), found)
    token = next((t for t in tokens(text) if t.start <= place.column <= t.end and t.kind != "operator"), None)
    if token is not None:
        found = types.SelectionRange(place.range(Span(line, token.start, token.end)), found)
    return found
