"""What an editor draws into the text: semantic tokens, inlay hints with inferred types, code lenses.

Semantic tokens have types that a regular-expression grammar cannot determine. Code lenses above graphs show
debug, the size, and the number of calls.
"""

from __future__ import annotations

import asyncio
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import count, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from lsprotocol import types

from nncdbg.process.collector import collector_paused
from nncdbg.text.counting import counted
from nncdbg.text.types import print_type
from nncdbg.textual_repr.language_server.analysis import Analysis, Chunk, owner
from nncdbg.textual_repr.language_server.document import ColumnEncoding, Document, changed_part
from nncdbg.textual_repr.language_server.tokens import (
    Definition,
    Mention,
    Span,
    Token,
    call_end,
    kind_of_line,
    type_after,
    type_of_definition,
    types_behind,
)

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
    for row in range(analysis.first_lines.get(first, first), last):
        column_before = 0
        for line, text, start, end, kind, modifiers in _pieces(analysis, row):
            if not first <= line < last:
                continue
            if line > line_before:
                column_before = 0
            if not text.isascii():
                start, end = units.outwards(text, start), units.outwards(text, end)
            data += (line - line_before, start - column_before, end - start, kind, modifiers)
            line_before, column_before = line, start
    return data


def _pieces(analysis: Analysis, row: int) -> Iterator[tuple[int, str, int, int, int, int]]:
    """Yield the tokens of the statement that begins at a line: line, its text, columns, type and modifiers.

    A token on several lines is yielded once for each of them.
    """
    text = analysis.lines[row]
    if "\n" not in text:
        for token, kind, modifiers in _of_line(analysis, row):
            yield row, text, token.start, token.end, kind, modifiers
        return
    lines = text.split("\n")
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    for token, kind, modifiers in _of_line(analysis, row):
        for at in range(bisect_right(starts, token.start) - 1, bisect_right(starts, token.end - 1)):
            start, end = max(0, token.start - starts[at]), min(token.end - starts[at], len(lines[at]))
            if start < end:
                yield row + at, lines[at], start, end, kind, modifiers


def _of_line(analysis: Analysis, line: int) -> Iterator[tuple[Token, int, int]]:
    text = analysis.lines[line]
    named = {mention.start: mention for mention in analysis.mentions(line)}
    kind = kind_of_line(text)
    found = analysis.tokens(line)
    clause = range(0)
    if "loc(" in text and kind != "track":
        clause = location_clause(found)
    for token in found:
        mention = named.get(token.start) if token.kind == "value" else None
        if token.start in clause:
            # A location is read least: editors dim comments.
            yield token, _TYPE["comment"], 0
        elif mention is not None:
            yield token, _TYPE[_value(analysis, line, mention)], int(mention.defines)
        elif token.kind == "word":
            if kind == "track" and text[token.end :].lstrip()[:1] == "(":
                yield token, _TYPE["function"], 0
            elif kind == "states" and token is found[1]:
                yield token, _TYPE["namespace"], 0
            elif token.name in _WORDS and kind != "track":
                yield token, _TYPE["keyword"], 0
        elif token.kind in _KINDS:
            yield token, _TYPE[_KINDS[token.kind]], int(kind == "graph" and token.kind == "graph")


def _value(analysis: Analysis, line: int, mention: Mention) -> str:
    """Return "parameter" for graph inputs and loop-carried values, else "variable"."""
    block = owner(analysis.scope_of(line, mention), mention.name)
    inputs = block.inputs if block is not None else ()
    return "parameter" if any(value.name == mention.name for value in inputs) else "variable"


def location_clause(found: Sequence[Token]) -> range:
    """Return the columns of the ``loc(...)`` of a statement; empty without one."""
    for at, token in enumerate(found[:-1]):
        if token.name == "loc" and token.kind == "keyword" and found[at + 1].name == "(":
            close = next((other for other in found[at:] if other.name == ")"), found[-1])
            return range(token.start, close.end)
    return range(0)


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
    analysis = document.analysis
    first = analysis.first_lines.get(range.start.line, range.start.line)
    return [_hint(document, missing) for missing in missing_types(analysis, first, last)]


class MissingType(NamedTuple):
    """A known type that is not written: `text` at `span` writes it, `definitions` are the values."""

    span: Span
    text: str
    definitions: tuple[Definition, ...]


def missing_types(analysis: Analysis, first: int, last: int) -> Iterator[MissingType]:
    """Yield the known types that the statements in lines `first` to `last` do not write."""
    for line in range(first, last + 1):
        untyped = [*_untyped(analysis, line)]
        if not untyped:
            continue
        found = analysis.tokens(line)
        outputs = list(takewhile(lambda token: token.name != "=", found))
        end = call_end(found)
        in_front = any(type_after(outputs, at) for at in range(len(outputs)))
        behind = types_behind(found)
        if end is None or in_front:
            for each in untyped:
                place = Span(line, each.span.end, each.span.end)
                yield MissingType(place, f": {_type_text(each)}", (each,))
        elif behind:
            for each in untyped:
                at = next(at for at, token in enumerate(outputs) if token.start == each.span.start)
                unknown = type_of_definition(found, at)
                if unknown is not None:
                    place = Span(line, unknown.start, unknown.end)
                    yield MissingType(place, _type_text(each), (each,))
        else:
            known = {each.span.start: _type_text(each) for each in untyped}
            names = [token for token in outputs if token.kind == "value" or token.name == "_"]
            types_ = ", ".join(known.get(token.start, "_") for token in names)
            yield MissingType(Span(line, found[end].end, found[end].end), f" : {types_}", tuple(untyped))


def _type_text(definition: Definition) -> str:
    assert definition.type is not None
    return print_type(definition.type)


def _untyped(analysis: Analysis, line: int) -> Iterator[Definition]:
    """Yield the definitions of a statement without a written type, but with a known type."""
    for mention in analysis.mentions(line):
        found = analysis.definition_of(line, mention) if mention.defines else None
        if found is None or found.written is not None or found.type is None:
            continue
        if found.span == Span(line, mention.start, mention.end):
            yield found


def _hint(document: Document, missing: MissingType) -> types.InlayHint:
    place = document.range(missing.span)
    label = missing.text if missing.text[0] in " :" else f" {missing.text}"
    return types.InlayHint(
        place.end,
        label,
        kind=types.InlayHintKind.Type,
        text_edits=[types.TextEdit(place, missing.text)],
    )
