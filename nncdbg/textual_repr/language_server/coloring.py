"""Semantic tokens: what each piece of a line is, beyond what a grammar of expressions can tell."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lsprotocol import types

from nncdbg.engine.collector import collector_paused
from nncdbg.textual_repr.language_server.analysis import Analysis
from nncdbg.textual_repr.language_server.records import Mention, Token
from nncdbg.textual_repr.language_server.tokens import kind_of_line, tokens

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
"""The kind of a piece to the type of its token; values are variables or parameters."""

TYPES = ("variable", "parameter", *_KINDS.values())
MODIFIERS = ("declaration", "readonly")

_LEGEND = types.SemanticTokensLegend(list(TYPES), list(MODIFIERS))
_TYPE = {name: index for index, name in enumerate(TYPES)}
_WORDS = frozenset({"count", "times", "unless", "node", "from"})
"""Words that mean something in their place only."""

_REMEMBERED = 16
"""Answers that a delta can refer to."""


def register(server: NncServer) -> None:
    """Semantic tokens of a document, of a range, and what has changed in them."""
    answers: OrderedDict[str, list[int]] = OrderedDict()
    count = 0

    def remember(data: list[int]) -> str:
        nonlocal count
        count += 1
        answers[str(count)] = data
        while len(answers) > _REMEMBERED:
            answers.popitem(last=False)
        return str(count)

    @server.feature(types.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL, _LEGEND)
    def full(params: types.SemanticTokensParams) -> types.SemanticTokens | None:
        document = server.documents.get(params.text_document.uri)
        if document is None:
            return None
        data = encoded(document, 0, len(document.lines))
        return types.SemanticTokens(data, remember(data))

    @server.feature(types.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL_DELTA)
    def delta(
        params: types.SemanticTokensDeltaParams,
    ) -> types.SemanticTokens | types.SemanticTokensDelta | None:
        document = server.documents.get(params.text_document.uri)
        if document is None:
            return None
        before = answers.get(params.previous_result_id)
        data = encoded(document, 0, len(document.lines))
        if before is None:
            return types.SemanticTokens(data, remember(data))
        return types.SemanticTokensDelta(_edits(before, data), remember(data))

    @server.feature(types.TEXT_DOCUMENT_SEMANTIC_TOKENS_RANGE)
    def range_of(params: types.SemanticTokensRangeParams) -> types.SemanticTokens | None:
        document = server.documents.get(params.text_document.uri)
        if document is None:
            return None
        last = min(params.range.end.line + 1, len(document.lines))
        return types.SemanticTokens(encoded(document, params.range.start.line, last))


def _edits(before: list[int], after: list[int]) -> list[types.SemanticTokensEdit]:
    """One edit, from the first difference to the last."""
    start = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), None)
    if start is None:
        start = min(len(before), len(after))
    most = min(len(before), len(after)) - start
    same = 0
    while same < most and before[-1 - same] == after[-1 - same]:
        same += 1
    removed, inserted = len(before) - same - start, after[start : len(after) - same]
    if not removed and not inserted:
        return []
    return [types.SemanticTokensEdit(start, removed, inserted)]


@collector_paused()
def encoded(document: Document, first: int, last: int) -> list[int]:
    """The tokens of lines `first` to `last` (exclusive), each relative to the one before, as five numbers."""
    analysis = document.analysis
    data: list[int] = []
    line_before = 0
    for line in range(first, last):
        text = document.lines[line]
        ascii_only = text.isascii()
        column_before = 0
        for token, kind, modifiers in _of_line(analysis, line):
            start, end = token.start, token.end
            if not ascii_only:
                start, end = document.units.outwards(text, start), document.units.outwards(text, end)
            data += (line - line_before, start - column_before, end - start, kind, modifiers)
            line_before, column_before = line, start
    return data


def _of_line(analysis: Analysis, line: int) -> Iterator[tuple[Token, int, int]]:
    text = analysis.lines[line]
    named = {mention.start: mention for mention in analysis.mentions(line)}
    header = kind_of_line(text) == "graph"
    for token in tokens(text, analysis.prefixes):
        mention = named.get(token.start) if token.kind == "value" else None
        if mention is not None:
            yield token, _TYPE[_value(analysis, line, mention)], int(mention.defines)
        elif token.kind == "word":
            if token.name in _WORDS:
                yield token, _TYPE["keyword"], 0
        elif token.kind in _KINDS:
            yield token, _TYPE[_KINDS[token.kind]], int(header and token.kind == "graph")


def _value(analysis: Analysis, line: int, mention: Mention) -> str:
    """Inputs of a graph and what a loop carries are parameters."""
    block = analysis.scope_of(line, mention)
    while block is not None and mention.name not in block.names:
        block = block.parent
    inputs = block.inputs if block is not None else ()
    return "parameter" if any(value.name == mention.name for value in inputs) else "variable"
