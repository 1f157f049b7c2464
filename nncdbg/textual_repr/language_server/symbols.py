"""The outline of a document, its folding and selection ranges, and the graphs of the workspace."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from lsprotocol import types
from pygls.uris import from_fs_path, to_fs_path

from nncdbg.text.lexemes import name_text
from nncdbg.text.types import value_text
from nncdbg.textual_repr.blocks import Block
from nncdbg.textual_repr.language_server.analysis import Analysis, Chunk
from nncdbg.textual_repr.language_server.document import Document, split
from nncdbg.textual_repr.language_server.graph_reading import Opened
from nncdbg.textual_repr.language_server.tokens import Span, kind_of_line, tokens

if TYPE_CHECKING:
    from nncdbg.textual_repr.language_server.document import Document
    from nncdbg.textual_repr.language_server.server import NncServer, Place


def register(server: NncServer) -> None:
    """Register document symbols and workspace symbols, folding ranges and selection ranges."""

    @server.feature(types.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    def document_symbols(params: types.DocumentSymbolParams) -> list[types.DocumentSymbol]:
        document = server.documents.get(params.text_document.uri)
        if document is None:
            return []
        analysis = document.analysis
        return [_graph(document, analysis, chunk) for chunk in analysis.chunks if chunk.block is not None]

    @server.feature(types.WORKSPACE_SYMBOL)
    def workspace_symbols(params: types.WorkspaceSymbolParams) -> list[types.WorkspaceSymbol]:
        wanted = params.query.lstrip("@").lower()
        return [symbol for symbol in _of_workspace(server) if _fits(wanted, symbol.name.lstrip("@").lower())]

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


_MOST_FILES = 2000
_LARGEST = 64 << 20
"""Maximum number of workspace files, and of bytes in a file."""

DEEPEST = 40
"""Maximum depth of an outline or a selection; deeper items are put on the last level."""

_SKIPPED = {"node_modules", "__pycache__"}


def _fits(wanted: str, name: str) -> bool:
    """Return True if `name` contains the letters of `wanted` in this order."""
    rest = iter(name)
    return all(letter in rest for letter in wanted)


# -- outline ---------------------------------------------------------------------------------------


def _graph(document: Document, analysis: Analysis, chunk: Chunk) -> types.DocumentSymbol:
    """Return the symbol of a graph with its blocks and the layers that it calls."""
    signature = chunk.signature
    detail = None
    if signature is not None:
        inputs, outputs = (", ".join(map(value_text, vs)) for vs in (signature.inputs, signature.outputs))
        detail = f"({inputs}) -> ({outputs})"
    symbol = _symbol(
        document,
        f"@{name_text(chunk.name)}",
        types.SymbolKind.Function,
        last_line(chunk),
        analysis.header_span(chunk),
    )
    symbol.detail = detail
    inside: dict[Block | None, types.DocumentSymbol] = {chunk.block: symbol}
    depths = {id(symbol): 0}
    calls = {site.span.line: site for site in analysis.calls(chunk)}
    ends = {block: chunk.start + end for block, end in block_ends(chunk).items()}
    for own, event in enumerate(chunk.reading.events):
        line = chunk.start + own
        if not own or (line not in calls and not isinstance(event, Opened)):
            continue
        around = inside.get(analysis.block_at(line), symbol)
        if isinstance(event, Opened):
            opened = event.block
            label = f" @{name_text(opened.name)}" if opened.name else ""
            kind = kind_of_line(chunk.lines[own])
            text = chunk.lines[own]
            place = Span(line, len(text) - len(text.lstrip()), len(text.rstrip()))
            name = ("else" if kind == "}" else kind) + label
            inside[opened] = _symbol(
                document, name, types.SymbolKind.Namespace, ends.get(opened, line), place
            )
            depths[id(inside[opened])] = depths[id(around)] + 1
            _add(around, inside[opened])
            if depths[id(around)] >= DEEPEST:
                inside[opened] = around
        else:
            site = calls[line]
            _add(
                around,
                _symbol(document, f"@{name_text(site.name)}", types.SymbolKind.Module, line, site.span),
            )
    return symbol


def _symbol(
    document: Document, name: str, kind: types.SymbolKind, last: int, place: Span
) -> types.DocumentSymbol:
    lines = document.lines
    selection = document.units.range(lines[place.line], place)
    end = document.units.position(lines[last], last, len(lines[last]))
    start = types.Position(place.line, 0)
    return types.DocumentSymbol(name, kind, types.Range(start, end), selection, children=[])


def _add(parent: types.DocumentSymbol, child: types.DocumentSymbol) -> None:
    assert isinstance(parent.children, list)
    parent.children.append(child)


def block_ends(chunk: Chunk) -> dict[Block, int]:
    """Map each block to the line that closes it, or to the last line, relative to the chunk."""
    ends: dict[Block, int] = {}
    open_blocks: list[Block] = []
    before: Block | None = None
    for own, block in enumerate(chunk.reading.blocks):
        if block is before:
            continue
        before = block
        around = set() if block is None else set(block.outwards())
        while open_blocks and open_blocks[-1] not in around:
            ends[open_blocks.pop()] = max(0, own - 1)
        if block is not None and (not open_blocks or open_blocks[-1] is not block):
            open_blocks.append(block)
    ends.update({block: len(chunk.lines) - 1 for block in open_blocks})
    return ends


def last_line(chunk: Chunk) -> int:
    """Return the last line of a graph: its closing brace, or its last line with text."""
    block = chunk.block
    own = block_ends(chunk).get(block, len(chunk.lines) - 1) if block is not None else len(chunk.lines) - 1
    return chunk.start + own


# -- workspace -------------------------------------------------------------------------------------


def _of_workspace(server: NncServer) -> Iterator[types.WorkspaceSymbol]:
    """Yield open documents as edited, all others as stored on disk."""
    for uri, document in server.documents.items():
        analysis = document.analysis
        for name, chunk in analysis.graphs.items():
            place = document.units.range(chunk.lines[0], analysis.header_span(chunk))
            yield _found(name, uri, place)
    opened = {to_fs_path(uri) for uri in server.documents}
    for path in _files(server):
        if str(path) in opened:
            continue
        uri = from_fs_path(str(path))
        for number, line in enumerate(_read(path)):
            if uri is not None and kind_of_line(line) == "graph":
                token = next((t for t in tokens(line) if t.kind == "graph"), None)
                if token is not None:
                    span = Span(number, token.start, token.end)
                    yield _found(token.name, uri, server.units.range(line, span))


def _found(name: str, uri: str, place: types.Range) -> types.WorkspaceSymbol:
    return types.WorkspaceSymbol(types.Location(uri, place), f"@{name_text(name)}", types.SymbolKind.Function)


def _files(server: NncServer) -> Iterator[Path]:
    """Yield the graph texts in the workspace folders, except hidden folders."""
    roots = [folder.uri for folder in server.workspace.folders.values()]
    if not roots and server.workspace.root_uri is not None:
        roots = [server.workspace.root_uri]
    count = 0
    for root in roots:
        for folder, below, names in os.walk(to_fs_path(root) or ""):
            below[:] = sorted(name for name in below if not name.startswith(".") and name not in _SKIPPED)
            for name in sorted(names):
                if name.endswith(".nnc") and count < _MOST_FILES:
                    count += 1
                    yield Path(folder, name)


def _read(path: Path) -> list[str]:
    """Return the lines of a file; none if it is missing, too large or unreadable."""
    try:
        if path.stat().st_size > _LARGEST:
            return []
        return split(path.read_text("utf-8", errors="replace"))
    except OSError:
        return []


# -- folding and selection ranges ------------------------------------------------------------------


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
