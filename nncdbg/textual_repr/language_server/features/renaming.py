"""Rename values and graphs, with quotes if the new name needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams

from nncdbg.engine.text.lexemes import Flaw, name_text, unquote
from nncdbg.engine.text.prefixes import Prefixes
from nncdbg.textual_repr.blocks import Block
from nncdbg.textual_repr.language_server.document.records import Definition, Span
from nncdbg.textual_repr.language_server.features.navigation import graph_at, reference_spans

if TYPE_CHECKING:
    from nncdbg.textual_repr.language_server.server import NncServer, Place


def register(server: NncServer) -> None:
    """Register rename and its preparation request."""

    @server.feature(types.TEXT_DOCUMENT_PREPARE_RENAME)
    def prepare(params: types.PrepareRenameParams) -> types.PrepareRenamePlaceholder | None:
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
