"""Semantic tokens: token types that a regular-expression grammar cannot determine."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

from lsprotocol import types

from nncdbg.process.collector import collector_paused
from nncdbg.textual_repr.language_server.analysis import Analysis
from nncdbg.textual_repr.language_server.document import ColumnEncoding
from nncdbg.textual_repr.language_server.tokens import Mention, Token, kind_of_line, tokens

if TYPE_CHECKING:
    from nncdbg.textual_repr.language_server.document import Document
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
    """Register semantic tokens of a document, of a range, and their deltas."""
    answers: dict[str, tuple[str, array[int]]] = {}
    ids = count(1)

    def remember(uri: str, data: array[int]) -> str:
        """Store the last response for a document, the base of the next delta."""
        answers[uri] = (found := str(next(ids))), data
        return found

    @server.feature(types.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL, _LEGEND)
    async def full(params: types.SemanticTokensParams) -> types.SemanticTokens | None:
        uri = params.text_document.uri
        document = server.documents.get(uri)
        if document is None:
            return None
        data = await _whole(document)
        return types.SemanticTokens(data.tolist(), remember(uri, data))

    @server.feature(types.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL_DELTA)
    async def delta(
        params: types.SemanticTokensDeltaParams,
    ) -> types.SemanticTokens | types.SemanticTokensDelta | None:
        uri = params.text_document.uri
        document = server.documents.get(uri)
        if document is None:
            return None
        data = await _whole(document)
        known, before = answers.get(uri, ("", array("I")))
        if known != params.previous_result_id:
            return types.SemanticTokens(data.tolist(), remember(uri, data))
        return types.SemanticTokensDelta(_edits(before, data), remember(uri, data))

    @server.feature(types.TEXT_DOCUMENT_SEMANTIC_TOKENS_RANGE)
    def range_of(params: types.SemanticTokensRangeParams) -> types.SemanticTokens | None:
        document = server.documents.get(params.text_document.uri)
        if document is None:
            return None
        last = min(params.range.end.line + 1, len(document.lines))
        return types.SemanticTokens(encoded(document.analysis, document.units, params.range.start.line, last))


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
    start = _same(before, after)
    same = _same(before[start:][::-1], after[start:][::-1])
    removed, inserted = len(before) - same - start, after[start : len(after) - same]
    if not removed and not inserted:
        return []
    return [types.SemanticTokensEdit(start, removed, inserted.tolist())]


def _same(a: array[int], b: array[int]) -> int:
    """Return the length of the common prefix of two number sequences."""
    most, step = min(len(a), len(b)), 4096
    near = next((i for i in range(0, most, step) if a[i : i + step] != b[i : i + step]), most)
    return next((i for i in range(near, most) if a[i] != b[i]), most)


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
    block = analysis.scope_of(line, mention)
    while block is not None and mention.name not in block.names:
        block = block.parent
    inputs = block.inputs if block is not None else ()
    return "parameter" if any(value.name == mention.name for value in inputs) else "variable"
