"""What an editor draws into the text: semantic tokens, inlay hints with inferred types, code lenses.

Semantic tokens have types that a regular-expression grammar cannot determine. Code lenses above graphs show
debug, the size, and the number of calls.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

from lsprotocol import types

from nncdbg.process.collector import collector_paused
from nncdbg.text.counting import counted
from nncdbg.text.types import print_type
from nncdbg.textual_repr.language_server.analysis import Analysis, Chunk, owner
from nncdbg.textual_repr.language_server.document import ColumnEncoding, Document, changed_part
from nncdbg.textual_repr.language_server.tokens import Definition, Mention, Span, Token, kind_of_line, tokens

if TYPE_CHECKING:
    from nncdbg.textual_repr.language_server.server import NncServer

_KINDS = {
    "comment": "comment",
    "graph": "namespace",
    "label": "label",
    "type": "type",
    "string": "string",
    "number": "number",
    "keyword": "keyword",
    "op": "function",
    "attribute": "property",
    "operator": "operator",
}
"""Maps token kinds to semantic token types; values are variables or parameters."""

TYPES = ("variable", "parameter", *_KINDS.values())
MODIFIERS = ("declaration", "readonly")

_LEGEND = types.SemanticTokensLegend(list(TYPES), list(MODIFIERS))
_TYPE = {name: index for index, name in enumerate(TYPES)}
_WORDS = frozenset({"count", "times", "unless", "node", "from"})
"""Contextual keywords."""

_TURN = 200
"""Lines tokenized before other messages are processed."""


def register(server: NncServer) -> None:
    """Register semantic tokens of a document, of a range, and their deltas; inlay hints and code lenses."""
    answers: dict[str, tuple[str, array[int]]] = {}
    """The last response for each document, the base of the next delta, with its number."""
    ids = count(1)

    def remember(document: Document, data: array[int]) -> str:
        answers[document.uri] = (number := str(next(ids))), data
        return number

    async def full(document: Document, _: Any) -> types.SemanticTokens:
        data = await _whole(document)
        return types.SemanticTokens(data.tolist(), remember(document, data))

    async def delta(
        document: Document, params: types.SemanticTokensDeltaParams
    ) -> types.SemanticTokens | types.SemanticTokensDelta:
        data = await _whole(document)
        number, before = answers.get(document.uri, ("", array("I")))
        if number != params.previous_result_id:
            return types.SemanticTokens(data.tolist(), remember(document, data))
        return types.SemanticTokensDelta(_edits(before, data), remember(document, data))

    def part(document: Document, params: types.SemanticTokensRangeParams) -> types.SemanticTokens:
        last = min(params.range.end.line + 1, len(document.lines))
        return types.SemanticTokens(encoded(document.analysis, document.units, params.range.start.line, last))

    server.on_document(types.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL, full, options=_LEGEND)
    server.on_document(types.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL_DELTA, delta)
    server.on_document(types.TEXT_DOCUMENT_SEMANTIC_TOKENS_RANGE, part)
    server.on_document(
        types.TEXT_DOCUMENT_INLAY_HINT, lambda document, params: inlay_hints(document, params.range), []
    )
    lenses = types.CodeLensOptions(resolve_provider=False)
    server.on_document(
        types.TEXT_DOCUMENT_CODE_LENS, lambda document, _: list(code_lenses(document)), [], lenses
    )


async def _whole(document: Document) -> array[int]:
    """Return the tokens of the current text; process other messages meanwhile."""
    analysis, units = document.analysis, document.units
    data = array("I")
    line_before = 0
    for first in range(0, len(analysis.lines), _TURN):
        part = encoded(analysis, units, first, min(first + _TURN, len(analysis.lines)), line_before)
        line_before += sum(part[::5])
        data.extend(part)
        await asyncio.sleep(0)
    return data


def _edits(before: array[int], after: array[int]) -> list[types.SemanticTokensEdit]:
    """Return one edit, from the first difference to the last."""
    old, new = changed_part(before, after)
    removed, inserted = old.stop - old.start, after[new]
    if not removed and not inserted:
        return []
    return [types.SemanticTokensEdit(old.start, removed, inserted.tolist())]


@collector_paused()
def encoded(
    analysis: Analysis, units: ColumnEncoding, first: int, last: int, line_before: int = 0
) -> list[int]:
    """Encode the tokens of lines `first` to `last` (exclusive), as five numbers per token.

    Each token is relative to the previous one, and the first to a token on `line_before`.
    """
    data: list[int] = []
    for line in range(first, last):
        text = analysis.lines[line]
        ascii_only = text.isascii()
        column_before = 0
        for token, kind, modifiers in _of_line(analysis, line):
            start, end = token.start, token.end
            if not ascii_only:
                start, end = units.outwards(text, start), units.outwards(text, end)
            data += (line - line_before, start - column_before, end - start, kind, modifiers)
            line_before, column_before = line, start
    return data


def _of_line(analysis: Analysis, line: int) -> Iterator[tuple[Token, int, int]]:
    text = analysis.lines[line]
    named = {mention.start: mention for mention in analysis.mentions(line)}
    kind = kind_of_line(text)
    for token in tokens(text, analysis.prefixes):
        mention = named.get(token.start) if token.kind == "value" else None
        if mention is not None:
            yield token, _TYPE[_value(analysis, line, mention)], int(mention.defines)
        elif token.kind == "word":
            if kind == "track" and text[token.end :].lstrip()[:1] == "(":
                yield token, _TYPE["function"], 0
            elif token.name in _WORDS and kind != "track":
                yield token, _TYPE["keyword"], 0
        elif token.kind in _KINDS:
            yield token, _TYPE[_KINDS[token.kind]], int(kind == "graph" and token.kind == "graph")


def _value(analysis: Analysis, line: int, mention: Mention) -> str:
    """Return "parameter" for graph inputs and loop-carried values, else "variable"."""
    block = owner(analysis.scope_of(line, mention), mention.name)
    inputs = block.inputs if block is not None else ()
    return "parameter" if any(value.name == mention.name for value in inputs) else "variable"


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
                calls[site.name].append(types.Location(document.uri, document.range(site.span)))
    for order, (name, chunk) in enumerate(analysis.graphs.items()):
        place = document.range(chunk.header_span)
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
    return [_hint(document, found) for found in untyped(document.analysis, range.start.line, last)]


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
    position = document.range(span).end
    text = f": {print_type(definition.type)}"
    return types.InlayHint(
        position,
        text,
        kind=types.InlayHintKind.Type,
        text_edits=[types.TextEdit(types.Range(position, position), text)],
    )
