"""Definitions, references, call hierarchies and links; rename values and graphs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams
from pygls.uris import from_fs_path, to_fs_path

from nncdbg.text.lexemes import STRING, Flaw, name_text, unquote
from nncdbg.text.prefixes import Prefixes
from nncdbg.textual_repr.blocks import Block
from nncdbg.textual_repr.language_server.analysis import CallSite, Chunk
from nncdbg.textual_repr.language_server.document import Document
from nncdbg.textual_repr.language_server.symbols import last_line
from nncdbg.textual_repr.language_server.tokens import Definition, Span, mentions
from nncdbg.textual_repr.statement_lines import salvaged

if TYPE_CHECKING:
    from nncdbg.textual_repr.language_server.server import NncServer, Place


def register(server: NncServer) -> None:
    """Register navigation, call hierarchy, renaming and document links."""

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

    @server.feature(types.TEXT_DOCUMENT_PREPARE_RENAME)
    def prepare_renaming(params: types.PrepareRenameParams) -> types.PrepareRenamePlaceholder | None:
        place = server.place(params.text_document.uri, params.position)
        span = None if place is None else _renamed_span(place)
        if place is None or span is None:
            return None
        bare = Span(span.line, span.start + 1, span.end)
        text = place.analysis.lines[span.line]
        return types.PrepareRenamePlaceholder(place.range(bare), text[bare.start : bare.end])

    @server.feature(types.TEXT_DOCUMENT_RENAME, types.RenameOptions(prepare_provider=True))
    def rename(params: types.RenameParams) -> types.WorkspaceEdit | None:
        place = server.place(params.text_document.uri, params.position)
        if place is None or _renamed_span(place) is None:
            return None
        prefixes = place.analysis.prefixes
        spell = name_text if graph_at(place) is not None else prefixes.spell
        name = _wanted(params.new_name, prefixes)
        _check_clash(place, name)
        edits: list[types.TextEdit | types.AnnotatedTextEdit | types.SnippetTextEdit] = [
            types.TextEdit(place.range(Span(span.line, span.start + 1, span.end)), spell(name))
            for span in reference_spans(place)
        ]
        identifier = types.OptionalVersionedTextDocumentIdentifier(place.document.uri, place.document.version)
        if _takes_versions(server):
            return types.WorkspaceEdit(document_changes=[types.TextDocumentEdit(identifier, edits)])
        return types.WorkspaceEdit(changes={place.document.uri: edits})  # type: ignore[dict-item]

    @server.feature(types.TEXT_DOCUMENT_DOCUMENT_LINK)
    def links(params: types.DocumentLinkParams) -> list[types.DocumentLink]:
        document = server.documents.get(params.text_document.uri)
        if document is None:
            return []
        roots = [to_fs_path(folder.uri) for folder in server.workspace.folders.values()]
        return list(document_links(document, [Path(root) for root in roots if root]))


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

    for line, text in enumerate(document.lines):
        if "loc(" in text:
            yield from _sources(document, line, target)
        elif (match := _store(text)) is not None and (uri := target(salvaged(match[1]))) is not None:
            yield types.DocumentLink(_quoted_range(document, line, match), uri)


def _sources(
    document: Document, line: int, target: Callable[[str], str | None]
) -> Iterator[types.DocumentLink]:
    text = document.lines[line]
    for match in _source(text, text.rindex("loc(")):
        uri = target(salvaged(match[1]))
        if uri is not None:
            # Editors read the line of a link from its fragment.
            yield types.DocumentLink(_quoted_range(document, line, match), f"{uri}#L{match[2]}")


def _quoted_range(document: Document, line: int, match: re.Match[str]) -> types.Range:
    """Return the range of the text between the quotes."""
    return document.units.range(document.lines[line], Span(line, match.start(1) + 1, match.end(1) - 1))


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


# -- renaming --------------------------------------------------------------------------------------


def _takes_versions(server: NncServer) -> bool:
    workspace = server.client_capabilities.workspace
    edit = workspace.workspace_edit if workspace is not None else None
    return bool(edit is not None and edit.document_changes)


def _renamed_span(place: Place) -> Span | None:
    """Return the span of the name under the cursor if the text defines its value or graph."""
    analysis = place.analysis
    name = graph_at(place)
    if name is not None:
        token = analysis.token_at(place.line, place.column)
        assert token is not None
        return Span(place.line, token.start, token.end) if name in analysis.graphs else None
    found = _definition(place)
    mention = analysis.mention_at(place.line, place.column)
    return Span(place.line, mention.start, mention.end) if found is not None and mention is not None else None


def _definition(place: Place) -> Definition | None:
    mention = place.analysis.mention_at(place.line, place.column)
    return place.analysis.definition_of(place.line, mention) if mention is not None else None


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
    found = _definition(place)
    if found is None or name == found.name:
        return
    chunk = analysis.chunk_at(place.line)
    for block in chunk.reading.opened:
        if name in block.names and (_inside(block, found.block) or _inside(found.block, block)):
            line = chunk.line_of(block.names[name]) + 1
            seen = f"where %{name_text(found.name)} is visible"
            raise JsonRpcInvalidParams(f"%{name_text(name)} is already defined at line {line}, {seen}")


def _inside(block: Block, outer: Block) -> bool:
    return any(each is outer for each in block.outwards())


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
        found.setdefault(site.caller, []).append(_call_range(document, site))
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
            found.setdefault(site.name, []).append(_call_range(document, site))
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


def _call_range(document: Document, site: CallSite) -> types.Range:
    return document.units.range(document.analysis.lines[site.span.line], site.span)
