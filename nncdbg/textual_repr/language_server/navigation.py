"""Definitions, references, call hierarchies and links; rename values and graphs.

Also the outline of a document, its folding and selection ranges, and the graphs of the workspace.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams
from pygls.uris import from_fs_path, to_fs_path

from nncdbg.text.lexemes import STRING, Flaw, Prefixes, name_text, quote, unquote
from nncdbg.text.types import value_text
from nncdbg.textual_repr.language_server.analysis import Analysis, Chunk
from nncdbg.textual_repr.language_server.document import Document, Place, split
from nncdbg.textual_repr.language_server.graph_reading import Opened
from nncdbg.textual_repr.language_server.tokens import Span, kind_of_line, tokens, whole_line
from nncdbg.textual_repr.resolution import Block
from nncdbg.textual_repr.statement_lines import salvaged

if TYPE_CHECKING:
    from nncdbg.textual_repr.language_server.server import NncServer


def register(server: NncServer) -> None:
    """Register navigation, call hierarchy, renaming, document links, symbols, folding and selection."""
    server.on_place(types.TEXT_DOCUMENT_DEFINITION, _definition_location)
    server.on_place(types.TEXT_DOCUMENT_REFERENCES, _reference_locations, [])
    server.on_place(types.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT, _highlights, [])
    server.on_place(types.TEXT_DOCUMENT_PREPARE_CALL_HIERARCHY, lambda place, _: prepared(place))
    server.on_document(
        types.CALL_HIERARCHY_INCOMING_CALLS,
        lambda document, params: incoming_calls(document, _name(params.item)),
    )
    server.on_document(
        types.CALL_HIERARCHY_OUTGOING_CALLS,
        lambda document, params: outgoing_calls(document, _name(params.item)),
    )
    server.on_place(types.TEXT_DOCUMENT_PREPARE_RENAME, _prepare_rename)
    renaming = types.RenameOptions(prepare_provider=True)
    server.on_place(types.TEXT_DOCUMENT_RENAME, partial(_rename, server), options=renaming)
    server.on_document(types.TEXT_DOCUMENT_DOCUMENT_SYMBOL, lambda document, _: symbols(document), [])
    server.on_document(types.TEXT_DOCUMENT_FOLDING_RANGE, lambda document, _: folding_ranges(document), [])

    def links(document: Document, _: types.DocumentLinkParams) -> list[types.DocumentLink]:
        roots = [to_fs_path(folder.uri) for folder in server.workspace.folders.values()]
        return list(document_links(document, [Path(root) for root in roots if root]))

    server.on_document(types.TEXT_DOCUMENT_DOCUMENT_LINK, links, [])

    @server.feature(types.WORKSPACE_SYMBOL)
    def workspace_symbols(params: types.WorkspaceSymbolParams) -> list[types.WorkspaceSymbol]:
        wanted = params.query.lstrip("@").lower()
        return [symbol for symbol in _of_workspace(server) if _fits(wanted, symbol.name.lstrip("@").lower())]

    @server.feature(types.TEXT_DOCUMENT_SELECTION_RANGE)
    def selection(params: types.SelectionRangeParams) -> list[types.SelectionRange]:
        places = (server.place(params.text_document.uri, position) for position in params.positions)
        return [selection_range(place) for place in places if place is not None]


# -- links to files --------------------------------------------------------------------------------

_store = re.compile(rf"\s*store\s+({STRING})").match
_source = re.compile(rf"({STRING}):([0-9]{{1,9}})").finditer


def document_links(document: Document, roots: Sequence[Path] = ()) -> Iterator[types.DocumentLink]:
    """Yield links to existing files, searched beside the document, then in the workspace folders."""
    own = to_fs_path(document.uri)
    folders = [*([Path(own).parent] if own else []), *roots]

    @cache
    def target(name: str) -> str | None:
        found = (folder / name for folder in folders if _is_file(folder / name))
        path = next(found, None)
        return from_fs_path(str(path.resolve())) if path is not None else None

    for line, text in enumerate(document.analysis.lines):
        if "loc(" in text:
            for source in _source(text, text.rindex("loc(")):
                if (uri := target(salvaged(source[1]))) is not None:
                    # Editors read the line of a link from its fragment.
                    yield types.DocumentLink(_quoted_range(document, line, source), f"{uri}#L{source[2]}")
        elif (match := _store(text)) is not None and (uri := target(salvaged(match[1]))) is not None:
            yield types.DocumentLink(_quoted_range(document, line, match), uri)


def _quoted_range(document: Document, line: int, match: re.Match[str]) -> types.Range:
    """Return the range of the text between the quotes."""
    return document.range(Span(line, match.start(1) + 1, match.end(1) - 1))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False  # not a valid file name: too long, or contains NUL


# -- definitions and references --------------------------------------------------------------------


def graph_at(place: Place) -> str | None:
    """Return the graph name under the cursor, in its header or in a call."""
    token = place.analysis.token_at(place.line, place.column)
    return token.name if token is not None and token.kind == "graph" else None


def definition_span(place: Place) -> Span | None:
    """Return the definition of the value or graph under the cursor."""
    name = graph_at(place)
    if name is not None:
        chunk = place.analysis.graphs.get(name)
        return chunk.header_span if chunk is not None else None
    found = place.definition()
    return found.span if found is not None else None


def _definition_location(place: Place, _: types.DefinitionParams) -> types.Location | None:
    span = definition_span(place)
    return place.location(span) if span is not None else None


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
    if found is not None:
        return analysis.references(found)
    chunk = analysis.chunk_at(place.line)
    return [
        Span(line, other.start, other.end)
        for line in range(chunk.start, chunk.end)
        for other in analysis.mentions(line)
        if other.name == mention.name and analysis.definition_of(line, other) is None
    ]


def _reference_locations(place: Place, params: types.ReferenceParams) -> list[types.Location]:
    own = None if params.context.include_declaration else definition_span(place)
    return [place.location(span) for span in reference_spans(place) if span != own]


def _highlights(place: Place, _: types.DocumentHighlightParams) -> list[types.DocumentHighlight]:
    kinds = types.DocumentHighlightKind
    found = []
    for span in reference_spans(place):
        mention = place.analysis.mention_at(span.line, span.start)
        defines = mention.defines if mention is not None else span == definition_span(place)
        found.append(types.DocumentHighlight(place.range(span), kinds.Write if defines else kinds.Read))
    return found


# -- renaming --------------------------------------------------------------------------------------


def _prepare_rename(place: Place, _: types.PrepareRenameParams) -> types.PrepareRenamePlaceholder | None:
    span = _renamed_span(place)
    if span is None:
        return None
    bare = Span(span.line, span.start + 1, span.end)
    text = place.analysis.lines[span.line]
    return types.PrepareRenamePlaceholder(place.range(bare), text[bare.start : bare.end])


def _rename(server: NncServer, place: Place, params: types.RenameParams) -> types.WorkspaceEdit | None:
    if _renamed_span(place) is None:
        return None
    analysis = place.analysis
    name = _wanted(params.new_name, analysis.prefixes_at(place.line))
    _check_clash(place, name)
    edits: list[types.TextEdit | types.AnnotatedTextEdit | types.SnippetTextEdit] = []
    for span in reference_spans(place):
        spell = name_text if graph_at(place) is not None else analysis.prefixes_at(span.line).spell
        edits.append(types.TextEdit(place.range(Span(span.line, span.start + 1, span.end)), spell(name)))
    if (key := _implied_key(place)) is not None:
        edits.append(key)
    workspace = server.client_capabilities.workspace
    edit = workspace.workspace_edit if workspace is not None else None
    if edit is not None and edit.document_changes:
        document = types.OptionalVersionedTextDocumentIdentifier(place.document.uri, place.document.version)
        return types.WorkspaceEdit(document_changes=[types.TextDocumentEdit(document, edits)])
    return types.WorkspaceEdit(changes={place.document.uri: edits})  # type: ignore[dict-item]


def _implied_key(place: Place) -> types.TextEdit | None:
    """Return the edit that writes the key of ``= data`` of a state, which is the former name."""
    found = place.definition() if graph_at(place) is None else None
    if found is None or found.role != "state":
        return None
    pieces = place.analysis.tokens(found.span.line)
    at = next((at for at, token in enumerate(pieces) if token.name == "=" and token.kind == "operator"), -1)
    after = [token.name for token in pieces[at + 1 : at + 3]]
    if at < 0 or after[:1] != ["data"] or after[1:] == ["("]:
        return None
    end = Span(found.span.line, pieces[at + 1].end, pieces[at + 1].end)
    return types.TextEdit(place.range(end), f"({quote(found.name)})")


def _renamed_span(place: Place) -> Span | None:
    """Return the span of the name under the cursor if the text defines its value or graph."""
    analysis = place.analysis
    token = analysis.token_at(place.line, place.column)
    if token is not None and token.kind == "graph":
        return Span(place.line, token.start, token.end) if token.name in analysis.graphs else None
    mention = analysis.mention_at(place.line, place.column)
    if mention is None or place.definition() is None:
        return None
    return Span(place.line, mention.start, mention.end)


def _wanted(text: str, prefixes: Prefixes) -> str:
    """Parse the new name, with or without sigil, quotes or a prefix."""
    spelled = text[1:] if text[:1] in "%@" and len(text) > 1 else text
    if (name := prefixes.find(spelled)) is not None:
        return name
    if len(spelled) > 1 and spelled[0] == spelled[-1] == '"':
        try:
            spelled = unquote(spelled)
        except Flaw as flaw:
            raise JsonRpcInvalidParams(f"{flaw.message}; {flaw.hint}") from flaw
    if not spelled:
        raise JsonRpcInvalidParams("a name has at least one character")
    return spelled


def _check_clash(place: Place, name: str) -> None:
    """Raise an error if the new name is taken in the scope of the value or graph."""
    analysis = place.analysis
    graph = graph_at(place)
    if graph is not None:
        if name != graph and name in analysis.graphs:
            line = analysis.graphs[name].start + 1
            raise JsonRpcInvalidParams(f"a graph @{name_text(name)} already exists, at line {line}")
        return
    found = place.definition()
    if found is None or name == found.name:
        return
    chunk = analysis.chunk_at(found.span.line)
    everywhere = found.role == "state" or analysis.passed.homes.get(found.name) is chunk
    taken = [analysis.states[name] + 1] if name in analysis.states else []
    for other in analysis.chunks if everywhere else [chunk]:
        for block in other.reading.opened:
            seen = everywhere or found.block in block.outwards() or block in found.block.outwards()
            if name in block.names and seen:
                taken.append(other.line_of(block.names[name]) + 1)
    if taken:
        where = f"where %{name_text(found.name)} is visible"
        raise JsonRpcInvalidParams(f"%{name_text(name)} is already defined at line {taken[0]}, {where}")


# -- call hierarchy --------------------------------------------------------------------------------


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
        found.setdefault(site.caller, []).append(document.range(site.span))
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
            found.setdefault(site.name, []).append(document.range(site.span))
    return [
        types.CallHierarchyOutgoingCall(_item(document, analysis.graphs[called]), places)
        for called, places in found.items()
    ]


def _name(item: types.CallHierarchyItem) -> str:
    """Return the graph name of an item, unquoted."""
    return item.data if isinstance(item.data, str) else item.name.removeprefix("@")


def _item(document: Document, chunk: Chunk) -> types.CallHierarchyItem:
    return types.CallHierarchyItem(
        f"@{name_text(chunk.name)}",
        types.SymbolKind.Function,
        document.uri,
        types.Range(types.Position(chunk.start, 0), document.end_of(last_line(chunk))),
        document.range(chunk.header_span),
        data=chunk.name,
    )


# -- outline ---------------------------------------------------------------------------------------

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


def symbols(document: Document) -> list[types.DocumentSymbol]:
    """Return the outline of a text: its graphs and blocks of states."""
    analysis = document.analysis
    found = [_graph_symbol(document, analysis, chunk) for chunk in analysis.chunks if chunk.block is not None]
    found += _state_symbols(document)
    return sorted(found, key=lambda symbol: symbol.range.start.line)


def _state_symbols(document: Document) -> Iterator[types.DocumentSymbol]:
    """Yield the blocks of states with the states in them."""
    lines = document.analysis.lines
    for first, last in state_blocks(lines):
        place = whole_line(lines[first].split("{")[0], first)
        name = lines[first][place.start : place.end]
        symbol = _symbol(document, name, types.SymbolKind.Struct, last, place)
        for line in range(first + 1, last):
            mark = next((mention for mention in document.analysis.mentions(line) if mention.defines), None)
            if mark is not None:
                named = Span(line, mark.start, mark.end)
                name = f"%{name_text(mark.name)}"
                state = _symbol(document, name, types.SymbolKind.Field, line, named)
                symbol.children.append(state)  # type: ignore[union-attr]
        yield symbol


def state_blocks(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the first and last lines of the blocks of states."""
    first: int | None = None
    for line, text in enumerate(lines):
        kind = kind_of_line(text) if ("states" in text and "{" in text) or first is not None else ""
        if first is not None and kind in ("}", "graph", "states"):
            yield first, line if kind == "}" else line - 1
            first = None
        if kind == "states":
            first = line
    if first is not None:
        yield first, len(lines) - 1


def _graph_symbol(document: Document, analysis: Analysis, chunk: Chunk) -> types.DocumentSymbol:
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
        chunk.header_span,
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
            place = whole_line(chunk.lines[own], line)
            name = ("else" if kind == "}" else kind) + label
            inside[opened] = _symbol(
                document, name, types.SymbolKind.Namespace, ends.get(opened, line), place
            )
            depths[id(inside[opened])] = depths[id(around)] + 1
            around.children.append(inside[opened])  # type: ignore[union-attr]
            if depths[id(around)] >= DEEPEST:
                inside[opened] = around
        else:
            site = calls[line]
            call = _symbol(document, f"@{name_text(site.name)}", types.SymbolKind.Module, line, site.span)
            around.children.append(call)  # type: ignore[union-attr]
    return symbol


def _symbol(
    document: Document, name: str, kind: types.SymbolKind, last: int, place: Span
) -> types.DocumentSymbol:
    last = document.analysis.last_lines.get(last, last)
    whole = types.Range(types.Position(place.line, 0), document.end_of(last))
    return types.DocumentSymbol(name, kind, whole, document.range(place), children=[])


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
    last = len(chunk.lines) - 1
    return chunk.start + (block_ends(chunk).get(chunk.block, last) if chunk.block is not None else last)


# -- workspace -------------------------------------------------------------------------------------


def _of_workspace(server: NncServer) -> Iterator[types.WorkspaceSymbol]:
    """Yield open documents as edited, all others as stored on disk."""
    for uri, document in server.documents.items():
        analysis = document.analysis
        for name, chunk in analysis.graphs.items():
            yield _workspace_symbol(name, uri, document.range(chunk.header_span))
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
                    yield _workspace_symbol(token.name, uri, server.units.range(line, span))


def _workspace_symbol(name: str, uri: str, place: types.Range) -> types.WorkspaceSymbol:
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


def folding_ranges(document: Document) -> list[types.FoldingRange]:
    """Return the folds of a text by their first lines."""
    lines = [*_blocks(document), *_comments(document), *_further(document), *_unread_views(document)]
    return sorted(lines, key=lambda found: found.start_line)


def _further(document: Document) -> Iterator[types.FoldingRange]:
    """Yield the statements of several lines, and the blocks of states, which editors fold on opening."""
    analysis = document.analysis
    for first, last in analysis.last_lines.items():
        if analysis.block_opened_at(first) is None:
            yield types.FoldingRange(first, last, kind=types.FoldingRangeKind.Region)
    for first, last in state_blocks(analysis.lines):
        if last - 1 > first:
            yield types.FoldingRange(first, last - 1, kind=types.FoldingRangeKind.Imports)


UNREAD_VIEWS = "unread views"
"""The kind of the folds of views that nothing reads."""


def _unread_views(document: Document) -> Iterator[types.FoldingRange]:
    """Yield adjacent statements of which each is a view that nothing reads."""
    analysis = document.analysis
    runs: list[list[tuple[int, int]]] = [[]]
    for problem in analysis.problems:
        if problem.code == "unread-view":
            line = problem.span.line
            if runs[-1] and line != runs[-1][-1][1] + 1:
                runs.append([])
            runs[-1].append((line, analysis.last_lines.get(line, line)))
    for run in runs:
        if len(run) > 1:
            yield types.FoldingRange(run[0][0], run[-1][1], kind=UNREAD_VIEWS)


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


def selection_range(place: Place) -> types.SelectionRange:
    """Return the token, the statement and the blocks around a cursor."""
    """Return nested ranges: the token, the line, the enclosing blocks from the inside out, the text."""
    document, analysis, line = place.document, place.analysis, place.line
    lines = analysis.lines
    found = types.SelectionRange(types.Range(types.Position(0, 0), document.end_of(len(lines) - 1)))
    inside = ((first, last) for first, last in state_blocks(lines) if first <= line <= last)
    for first, last in inside:
        found = types.SelectionRange(types.Range(types.Position(first, 0), document.end_of(last)), found)
    chunk = analysis.chunk_at(line)
    ends = block_ends(chunk)
    block = chunk.reading.blocks[line - chunk.start]
    if kind_of_line(lines[line]) != "}":
        block = analysis.block_opened_at(line) or block
    for around in reversed(list(islice(block.outwards(), DEEPEST)) if block is not None else []):
        first, last = chunk.line_of(around.line), chunk.start + ends.get(around, 0)
        whole = types.Range(types.Position(first, 0), document.end_of(last))
        found = types.SelectionRange(whole, found)
    text = lines[line]
    found = types.SelectionRange(place.range(whole_line(text, line)), found)
    token = analysis.token_at(line, place.column)
    if token is not None and token.kind != "operator":
        found = types.SelectionRange(place.range(Span(line, token.start, token.end)), found)
    return found
