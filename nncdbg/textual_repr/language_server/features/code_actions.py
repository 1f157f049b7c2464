"""Quick fixes for diagnostics, and rewrites that preserve the meaning."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lsprotocol import types

from nncdbg.engine.dtypes import NUMPY
from nncdbg.engine.text.lexemes import BARE, PREFIXED, name_text, quote
from nncdbg.engine.text.types import print_type
from nncdbg.textual_repr.language_server.analysis.analysis import Analysis
from nncdbg.textual_repr.language_server.analysis.events import StatementEntry
from nncdbg.textual_repr.language_server.document.document import Document
from nncdbg.textual_repr.language_server.document.line_edits import remove_lines, replace_span
from nncdbg.textual_repr.language_server.document.records import Problem, Span, Token
from nncdbg.textual_repr.language_server.document.tokens import kind_of_line, tokens
from nncdbg.textual_repr.language_server.features.inlay_hints import untyped
from nncdbg.textual_repr.language_server.rewriting.layer_flattening import (
    CannotMove,
    callee_at,
    first_comment,
    flatten,
    random_note,
    remove_graph,
)
from nncdbg.textual_repr.language_server.rewriting.layer_grouping import group, selected

if TYPE_CHECKING:
    from nncdbg.textual_repr.language_server.server import NncServer

_Kind = types.CodeActionKind


def register(server: NncServer) -> None:
    """Register code actions."""
    kinds = [_Kind.QuickFix, _Kind.RefactorRewrite, _Kind.RefactorInline, _Kind.RefactorExtract]

    @server.feature(types.TEXT_DOCUMENT_CODE_ACTION, types.CodeActionOptions(code_action_kinds=kinds))
    def actions(params: types.CodeActionParams) -> list[types.CodeAction]:
        document = server.documents.get(params.text_document.uri)
        if document is None:
            return []
        found = code_actions(document, params.range, params.context.diagnostics)
        only = params.context.only
        return [action for action in found if only is None or _wanted(str(action.kind), only)]


def _wanted(kind: str, only: Sequence[_Kind | str]) -> bool:
    """Return True for a requested kind or a subkind of one."""
    asked = (str(each.value) if isinstance(each, _Kind) else each for each in only)
    return any(kind == each or not each or kind.startswith(f"{each}.") for each in asked)


def code_actions(
    document: Document, range: types.Range, diagnostics: Sequence[types.Diagnostic] = ()
) -> Iterator[types.CodeAction]:
    """Yield the actions for a range of the text; `diagnostics` are the client's diagnostics in it."""
    first = min(range.start.line, len(document.lines) - 1)
    last = min(range.end.line, len(document.lines) - 1)
    if last > first and range.end.character == 0:
        last -= 1
    problems = [p for p in document.analysis.problems if first <= p.span.line <= last]
    fixes = [fix for problem in problems for fix in _fixes(document, problem, diagnostics)]
    yield from sorted(fixes, key=lambda fix: not fix.is_preferred)
    yield from _type_actions(document, first, last)
    yield from _flatten_actions(document, first)
    if range.start != range.end:
        yield from _group_actions(document, first, last)


def _action(
    document: Document, title: str, kind: types.CodeActionKind, edits: Sequence[types.TextEdit]
) -> types.CodeAction:
    return types.CodeAction(
        title, kind=kind.value, edit=types.WorkspaceEdit(changes={document.uri: list(edits)})
    )


# -- quick fixes -----------------------------------------------------------------------------------


def _fixes(
    document: Document, problem: Problem, diagnostics: Sequence[types.Diagnostic]
) -> Iterator[types.CodeAction]:
    place = document.units.range(document.lines[problem.span.line], problem.span)
    said = [d for d in diagnostics if d.code == problem.code and d.range.start == place.start]
    for title, edits, preferred in (
        *_near(document, problem),
        *_quoting(document, problem),
        *_removal(document, problem),
    ):
        action = _action(document, title, _Kind.QuickFix, edits)
        action.diagnostics = said or None
        action.is_preferred = preferred or None
        yield action


_Fix = tuple[str, list[types.TextEdit], bool]

_meant = re.compile(r"did you mean (.+)\?").fullmatch


def _near(document: Document, problem: Problem) -> Iterator[_Fix]:
    """Suggest the nearest name, if the message has one."""
    match = _meant(problem.hint or "")
    if match is not None:
        yield f"Replace by {match[1]}", [replace_span(document, problem.span, match[1])], True


_name = re.compile(r'([%@])([^\s,()={}"\[\]]+)')
_typed = re.compile(rf"({BARE}):(?:(?:{'|'.join(NUMPY)}|seq|opt)?)").fullmatch
_bare = re.compile(BARE).fullmatch
_prefixed = re.compile(PREFIXED).fullmatch


def _quoting(document: Document, problem: Problem) -> Iterator[_Fix]:
    """Quote the names of a line that need quotes, throughout the graph."""
    if problem.code != "syntax":
        return
    for match in _name.finditer(document.lines[problem.span.line]):
        name = match[2].rstrip(":")
        if _bare(name) or _typed(match[2]) or _prefixed(name):
            continue
        quoted = match[1] + quote(name)
        edits = [
            replace_span(document, span, quoted)
            for span in _spelled(document, problem.span.line, match[1] + name)
        ]
        yield f"Quote the name: {quoted}", edits, True


def _spelled(document: Document, line: int, name: str) -> Iterator[Span]:
    """Yield the unquoted uses of a name in the same graph, or in the whole text for a graph name."""
    chunk = document.analysis.chunk_at(line)
    lines = range(len(document.lines)) if name[0] == "@" else range(chunk.start, chunk.end)
    whole = re.compile(rf"{re.escape(name)}(?=:?[\s,()={{}}\[\]]|:?$)")
    for each in lines:
        text = document.lines[each]
        if name in text and not text.lstrip().startswith("#"):
            yield from (Span(each, found.start(), found.end()) for found in whole.finditer(text))


def _removal(document: Document, problem: Problem) -> Iterator[_Fix]:
    """Remove an unused statement, graph or name."""
    if problem.code != "unused":
        return
    analysis, span = document.analysis, problem.span
    line = span.line
    named = document.lines[line][span.start : span.end]
    if named.startswith("@"):
        yield f"Remove {named}", [remove_graph(document, analysis.chunk_at(line))], False
        return
    event = analysis.event_at(line)
    if isinstance(event, StatementEntry) and len(event.names.defines) == 1 and not _blanks(document, line):
        first = first_comment(document, line)
        yield f"Remove the statement that defines {named}", [remove_lines(document, first, line)], False
        return
    place, text = _left_out(document, span)
    yield f"Omit {named}", [replace_span(document, place, text)], False


def _blanks(document: Document, line: int) -> bool:
    """Return True if a statement has several outputs, each of which may be written ``_``."""
    found = tokens(document.lines[line])
    head = found[: next((i for i, t in enumerate(found) if t.name == "="), 0)]
    return any(token.name == "," and token.kind == "operator" for token in head)


def _left_out(document: Document, span: Span) -> tuple[Span, str]:
    """Return the span to replace and its replacement, to omit one of several or an optional definition."""
    text = document.lines[span.line]
    found = tokens(text)
    at = next(i for i, token in enumerate(found) if token.start == span.start)
    end = _end_of_definition(found, at)
    if kind_of_line(text) == "while":
        word = found[at - 1]  # count
        return Span(span.line, _with_blank(text, word.start), end), ""
    if _takes_from(found, end):
        return _result_span(span.line, text, found, at), ""
    return Span(span.line, span.start, end), "_"


def _end_of_definition(found: Sequence[Token], at: int) -> int:
    if at + 2 < len(found) and found[at + 1].name == ":" and found[at + 2].kind == "type":
        return found[at + 2].end
    return found[at].end


def _takes_from(found: Sequence[Token], end: int) -> bool:
    """Return True for a loop result, ``%y: T = %s``, which may be omitted."""
    following = next((token for token in found if token.start >= end), None)
    return following is not None and following.name == "=" and found[0].name == "}"


def _result_span(line: int, text: str, found: Sequence[Token], at: int) -> Span:
    """Return the span of a loop result with one adjacent comma."""
    last = at
    depth = 0
    while last + 1 < len(found) and (depth or found[last + 1].name not in (",", ")")):
        last += 1
        depth += (found[last].name == "[") - (found[last].name == "]")
    start, end = found[at].start, found[last].end
    if last + 1 < len(found) and found[last + 1].name == ",":
        end = found[last + 2].start if last + 2 < len(found) else found[last + 1].end
    elif found[at - 1].name == ",":
        start = found[at - 1].start
    return Span(line, start, end)


def _with_blank(text: str, start: int) -> int:
    return start - 1 if start and text[start - 1] == " " else start


# -- rewriting -------------------------------------------------------------------------------------------


def _type_actions(document: Document, first: int, last: int) -> Iterator[types.CodeAction]:
    """Insert the types that are inferred but not written."""
    found = list(untyped(document.analysis, first, last))
    if not found:
        return
    edits = []
    for definition in found:
        assert definition.type is not None
        end = Span(definition.span.line, definition.span.end, definition.span.end)
        edits.append(replace_span(document, end, f": {print_type(definition.type)}"))
    only = found[0]
    title = f"Write {len(found)} missing types"
    if len(found) == 1 and only.type is not None:
        title = f"Write the type: %{name_text(only.name)}: {print_type(only.type)}"
    yield _action(document, title, _Kind.RefactorRewrite, edits)


def _flatten_actions(document: Document, line: int) -> Iterator[types.CodeAction]:
    analysis = document.analysis
    callee = callee_at(analysis, line)
    if callee is None:
        return
    try:
        edits = flatten(document, line)
    except CannotMove:
        return
    title = f"Flatten @{name_text(callee.name)} into this graph"
    note = random_note(analysis.graphs, analysis.opsets, callee.name, analysis.chunk_at(line).name)
    yield _action(document, title + note, _Kind.RefactorInline, edits)


def _group_actions(document: Document, first: int, last: int) -> Iterator[types.CodeAction]:
    analysis: Analysis = document.analysis
    selection = selected(analysis, first, last)
    if selection is None:
        return
    try:
        edits = group(document, selection)
    except CannotMove:
        return
    note = random_note(analysis.graphs, analysis.opsets, analysis.chunk_at(first).name)
    yield _action(document, f"Group into a layer{note}", _Kind.RefactorExtract, edits)
