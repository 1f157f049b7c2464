"""Quick fixes for diagnostics, and rewrites that preserve results: flatten and group layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING

from lsprotocol import types

from nncdbg.dtypes import NUMPY
from nncdbg.engine.inference.statements import literal_dtype
from nncdbg.engine.inference.types import bind_symbols, literal_array, type_of_array, with_symbols
from nncdbg.errors import GraphError
from nncdbg.ir.kinds import is_transfer
from nncdbg.ir.names import claimed_name, fresh_name
from nncdbg.ir.records import Literal, Node, Type, Value
from nncdbg.text.lexemes import BARE, ELLIPSIS, PREFIX_END, PREFIXED, Flaw, name_text, quote
from nncdbg.text.types import parse_type, print_type, value_text
from nncdbg.textual_repr.language_server.analysis import Analysis, Chunk
from nncdbg.textual_repr.language_server.decorations import missing_types
from nncdbg.textual_repr.language_server.document import (
    Document,
    insert_below,
    remove_lines,
    replace_lines,
    replace_span,
)
from nncdbg.textual_repr.language_server.graph_reading import (
    LOCAL_NAME,
    BlockEnded,
    LoopExit,
    StatementEntry,
)
from nncdbg.textual_repr.language_server.navigation import last_line
from nncdbg.textual_repr.language_server.tokens import (
    Mention,
    Problem,
    Span,
    Token,
    call_end,
    kind_of_line,
    split_arguments,
    tokens,
    type_after,
    type_of_definition,
)
from nncdbg.textual_repr.literals import literal_text
from nncdbg.textual_repr.resolution import Block

if TYPE_CHECKING:
    from nncdbg.textual_repr.language_server.server import NncServer

# -- flattening ------------------------------------------------------------------------------------


class CannotMove(Exception):
    """Raised for statements that cannot be moved, such as statements with errors."""


def callee_at(analysis: Analysis, line: int) -> Chunk | None:
    """Return the graph called on a line, if the call can be replaced by its statements."""
    node = analysis.node_at(line)
    called = None if node is None else node.called
    if node is None or called is None:
        return None
    callee = analysis.graphs.get(called)
    if callee is None or callee.signature is None or callee is analysis.chunk_at(line):
        return None
    block = callee.block
    if block is None or not block.end or callee.reading.broken or callee.reading.problems:
        return None
    if block.listed is not None:
        return None  # The names that it passes must not change.
    fits = len(node.inputs) == len(block.inputs) and len(node.outputs) == len(block.outputs)
    return callee if fits and None not in node.inputs else None


def flatten(document: Document, line: int) -> list[types.TextEdit]:
    """Return edits that inline the graph called on `line`, and remove the graph if no calls remain.

    Raises CannotMove if this is not possible.
    """
    analysis = document.analysis
    callee = callee_at(analysis, line)
    if callee is None:
        raise CannotMove
    lines = _Flattening(analysis, line, callee).lines()
    edits = [replace_lines(document, line, analysis.last_lines.get(line, line), lines)]
    calls = sum(1 for _ in analysis.calls_of(callee.name))
    if calls == 1 and next(iter(analysis.graphs)) != callee.name:
        edits.append(remove_graph(document, callee))
    return edits


def remove_graph(document: Document, chunk: Chunk) -> types.TextEdit:
    """Return the edit that removes a graph with its comment and one blank line before it."""
    lines = document.lines
    first = first_comment(document, chunk.start)
    if first and not lines[first - 1].strip():
        first -= 1
    return remove_lines(document, first, last_line(chunk))


def first_comment(document: Document, line: int) -> int:
    """Return the first ``##`` line that belongs to the statement on `line`; `line` if there is none."""
    while line and re.match(r"\s*##(?!!)", document.lines[line - 1]):
        line -= 1
    return line


@dataclass(slots=True)
class _Flattening:
    analysis: Analysis
    line: int
    callee: Chunk
    taken: set[str] = field(default_factory=set)
    renamed: dict[tuple[Block, str], str] = field(default_factory=dict)
    """Maps values of the callee to their names in the caller."""
    written: dict[str, Type] = field(default_factory=dict)
    """The types that the call writes for its outputs, by their names."""
    sizes: dict[str, int | str | None] = field(default_factory=dict)
    """Sizes of the symbols in the callee's types, for this call."""
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        text = self.analysis.lines[self.line]
        indent = text[: len(text) - len(text.lstrip())]
        caller = self.analysis.chunk_at(self.line)
        self.taken.update(name for block in caller.reading.opened for name in block.names)
        node = self.analysis.node_at(self.line)
        assert node is not None
        self.take_inputs(node)
        self.take_outputs(node)
        body = list(self.body(indent))
        found = [*(indent + each for each in self.before), *body, *(indent + each for each in self.after)]
        return found or [f"{indent}# @{name_text(self.callee.name)} does nothing"]

    @property
    def block(self) -> Block:
        assert self.callee.block is not None
        return self.callee.block

    def spell(self, name: str) -> str:
        return self.analysis.prefixes_at(self.line).spell(name)

    def take_inputs(self, node: Node) -> None:
        for value, operand in zip(self.block.inputs, node.inputs, strict=True):
            if isinstance(operand, str):
                self.renamed[self.block, value.name] = operand
                given = self.analysis.type_of(self.line, operand)
            else:
                assert isinstance(operand, Literal)
                given = self.constant(value.name, operand)
            if value.type is not None and given is not None:
                bind_symbols(value.type, given, self.sizes)

    def constant(self, name: str, literal: Literal) -> Type:
        """Make a constant of a literal operand of the call."""
        dtype = literal_dtype(literal, None, 0, (), self.analysis.opsets)
        try:
            known = type_of_array(literal_array(literal, dtype))
        except GraphError as error:
            raise CannotMove from error
        self.renamed[self.block, name] = named = claimed_name(name, self.taken)
        self.before.append(f"%{self.spell(named)}: {print_type(known)} = {literal_text(literal.data)}")
        return known

    def take_outputs(self, node: Node) -> None:
        """Give results the output names of the call; a result that already has a name is copied."""
        for value, result in zip(self.block.outputs, node.outputs, strict=True):
            if not result.name:
                continue
            if (self.block, value.name) not in self.renamed:
                self.renamed[self.block, value.name] = result.name
                if result.type is not None:
                    self.written[result.name] = result.type
                continue
            same = self.spell(self.renamed[self.block, value.name])
            declared = f" : {print_type(result.type)}" if result.type is not None else ""
            self.after.append(f"%{self.spell(result.name)} = Identity(%{same}){declared}")

    def body(self, indent: str) -> Iterator[str]:
        """Yield the lines between the header and the return."""
        callee = self.callee
        lines = list(callee.lines[1 : self.block.end - 1 - callee.reading.before])
        while lines and (not lines[-1].strip() or lines[-1].lstrip().startswith("#")):
            lines.pop()  # a comment of the return
        first = next((text for text in lines if text.strip()), "")
        base = first[: len(first) - len(first.lstrip())]
        for own, text in enumerate(lines, 1):
            if not text.strip():
                if callee.start + own not in self.analysis.first_lines:
                    yield ""
                continue
            moved = self.moved(callee.start + own, text)
            if callee.reading.blocks[own] is self.block and moved.lstrip().startswith("##!"):
                moved = moved.replace("##!", "#", 1)  # a comment of the graph, which is removed
            for part in moved.split("\n"):
                yield indent + (part.removeprefix(base) if part.startswith(base) else part.lstrip())

    def moved(self, line: int, text: str) -> str:
        """Return a statement with the caller's names and with sizes in place of the callee's symbols."""
        pieces = tokens(text)
        marks = {mention.start: mention for mention in self.analysis.mentions(line)}
        written: dict[int, Type] = {}
        """The types that the call writes, by the columns of the types that they replace."""
        names: dict[int, str] = {}
        missing: dict[int, Type] = {}
        for at, token in enumerate(pieces):
            mark = marks.get(token.start) if token.kind == "value" else None
            if mark is None:
                continue
            names[token.start] = name = self.name(line, mark)
            known = self.written.get(name) if mark.defines else None
            if known is not None:
                typed = type_of_definition(pieces, at)
                (missing if typed is None else written)[token.start if typed is None else typed.start] = known
        out: list[str] = []
        end = 0
        call = call_end(pieces)
        behind = call is not None and len([mark for mark in marks.values() if mark.defines]) == 1
        for at, token in enumerate(pieces):
            out.append(text[end : token.start])
            end = token.end
            if token.start in names:
                out.append(f"%{self.spell(names[token.start])}")
                if token.start in missing and not behind:
                    out.append(f": {print_type(missing[token.start])}")
            elif token.start in written or token.kind == "type":
                out.append(print_type(written.get(token.start) or self.sized(text[token.start : end])))
            else:
                out.append(text[token.start : token.end])
            if behind and at == call and missing:
                out.append(f" : {print_type(*missing.values())}")
        return "".join(out) + text[end:]

    def name(self, line: int, mark: Mention) -> str:
        """Return the caller's name for a value of the callee."""
        definition = self.analysis.definition_of(line, mark)
        if definition is None:
            raise CannotMove
        if definition.role == "state":
            return definition.name
        key = definition.block, definition.name
        if key not in self.renamed:
            self.renamed[key] = claimed_name(definition.name, self.taken)
        return self.renamed[key]

    def sized(self, text: str) -> Type:
        """Return a type of the callee with the sizes of its symbols."""
        try:
            return with_symbols(parse_type(text), self.sizes)
        except Flaw as flaw:
            raise CannotMove from flaw


def random_note(chunks: Mapping[str, Chunk], opsets: Mapping[str, int], *names: str) -> str:
    """Return a title suffix if the graphs use random numbers, which depend on the position of their op."""
    from nncdbg.engine.ops import lookup
    from nncdbg.engine.ops.schema import version_of

    nodes = (n for name in names if name in chunks for b in chunks[name].reading.opened for n in b.nodes)
    ops = {node.op for node in nodes if not is_transfer(node.op)}
    declared = (lookup(op, version_of(op, opsets)) for op in ops)
    drawing = any(op is not None and op.random for op in declared)
    return " (random numbers will differ)" if drawing else ""


# -- grouping --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Selection:
    """Lines `first` to `last`, which are whole statements of `block`."""

    first: int
    last: int
    block: Block

    def __contains__(self, line: int) -> bool:
        return self.first <= line <= self.last


def selected(analysis: Analysis, first: int, last: int) -> Selection | None:
    """Return the statements in these lines if they are complete, free of errors, and can form a graph."""
    lines = analysis.lines
    first, last = (analysis.first_lines.get(line, line) for line in (first, last))
    while first <= last and not lines[first].strip():
        first += 1
    while last >= first and not lines[last].strip():
        last -= 1
    if first > last:
        return None
    block = analysis.block_at(first)
    if block is None or analysis.block_at(last) is not block or block.end == 0:
        return None
    if any(p.severity == "error" and first <= p.span.line <= last for p in analysis.problems):
        return None
    if not _is_whole(analysis, first, last, block):
        return None
    return Selection(first, analysis.last_lines.get(last, last), block)


def _is_whole(analysis: Analysis, first: int, last: int, block: Block) -> bool:
    """Return True if every block opened in the lines is closed there, and no line ends or leaves `block`."""
    depth = computed = 0
    for line in range(first, last + 1):
        text = analysis.lines[line].strip()
        if not text or text.startswith("#"):
            continue
        closes = text.startswith("}")
        if closes and depth == 0:
            return False
        event = analysis.event_at(line)
        around = analysis.block_at(line)
        if event is None or around is None or (isinstance(event, StatementEntry) and event.names.rest):
            return False
        if depth == 0 and (around is not block or isinstance(event, (BlockEnded, LoopExit))):
            return False
        depth += (analysis.block_opened_at(line) is not None) - closes
        computed += not (isinstance(event, StatementEntry) and not isinstance(event.content, Node))
    return depth == 0 and computed > 0


def group(document: Document, selection: Selection) -> list[types.TextEdit]:
    """Return edits that move the selected statements into a graph below their own, and call it.

    Raises CannotMove if this is not possible.
    """
    analysis = document.analysis
    inputs = _inputs(analysis, selection)
    outputs = _outputs(analysis, selection)
    labels = {block.name for chunk in analysis.chunks for block in chunk.reading.opened}
    name = name_text(fresh_name("layer", labels, mark="_"))
    text = document.lines[selection.first]
    indent = text[: len(text) - len(text.lstrip())]
    outside = analysis.prefixes_at(selection.first)
    inside = outside.within(name).spell
    names = ", ".join(f"%{outside.spell(value.name)}" for value in outputs)
    arguments = ", ".join(f"%{outside.spell(value.name)}" for value in inputs)
    call = f"{indent}{names}{' = ' if names else ''}@{name}({arguments}){_types_behind(outputs)}"
    moved = "\n".join(
        _respelled(analysis, line, inside)
        for line in range(selection.first, selection.last + 1)
        if line not in analysis.first_lines
    ).split("\n")
    formals, results = (", ".join(value_text(value, inside) for value in each) for each in (inputs, outputs))
    graph = [
        "",
        f"graph @{name}({formals}) -> ({results}) {{",
        *("  " + text.removeprefix(indent) if text.strip() else "" for text in moved),
        f"  return {', '.join(f'%{inside(value.name)}' for value in outputs)}".rstrip(),
        "}",
    ]
    below = last_line(analysis.chunk_at(selection.first))
    edit = replace_lines(document, selection.first, selection.last, [call])
    return [edit, insert_below(document, below, graph)]


def _types_behind(values: Sequence[Value]) -> str:
    """Return the types of the outputs of a call, ``_`` for unknown ones; empty if all are unknown."""
    if all(value.type is None for value in values):
        return ""
    return f" : {', '.join('_' if value.type is None else print_type(value.type) for value in values)}"


def _respelled(analysis: Analysis, line: int, spell: Callable[[str], str]) -> str:
    """Return a statement with its names below the module of its graph as another graph spells them."""
    text = analysis.lines[line]
    for mention in reversed(analysis.mentions(line)):
        if text.startswith(LOCAL_NAME, mention.start):
            text = f"{text[: mention.start]}%{spell(mention.name)}{text[mention.end :]}"
    return text


def _inputs(analysis: Analysis, selection: Selection) -> list[Value]:
    """Return the outer values used by the statements, in the order of their first use."""
    found: dict[str, Type | None] = {}
    for line in range(selection.first, selection.last + 1):
        for mention in analysis.mentions(line):
            definition = analysis.definition_of(line, mention)
            if definition is None:
                raise CannotMove
            if definition.span.line not in selection and definition.role != "state":
                found.setdefault(definition.name, definition.type)
    return [Value(name, known) for name, known in found.items()]


def _outputs(analysis: Analysis, selection: Selection) -> list[Value]:
    """Return the values of the statements that are used elsewhere, in the order of their definitions."""
    chunk = analysis.chunk_at(selection.first)
    number = {name: chunk.line_of(line) for name, line in selection.block.names.items()}
    own = {name for name, line in number.items() if line in selection}
    # Other graphs may read the values that the graph passes by `...`.
    used = {value.name for value in analysis.passed.outputs(chunk.name)} & own
    # A quoted or prefixed name can be spelled in several ways.
    may_use = re.compile("|".join(['"', PREFIX_END, LOCAL_NAME, *map(re.escape, own)])).search
    for offset, text in enumerate(chunk.lines):
        line = chunk.start + offset
        if line in selection or not may_use(text):
            continue
        for mention in analysis.mentions(line):
            if mention.name in own - used:
                definition = analysis.definition_of(line, mention)
                if definition is not None and definition.block is selection.block:
                    used.add(mention.name)
    return [Value(name, chunk.types.of(selection.block, name)) for name in number if name in used]


# -- actions ---------------------------------------------------------------------------------------

_Kind = types.CodeActionKind


def register(server: NncServer) -> None:
    """Register code actions."""
    kinds = [_Kind.QuickFix, _Kind.RefactorRewrite, _Kind.RefactorInline, _Kind.RefactorExtract]

    def actions(document: Document, params: types.CodeActionParams) -> list[types.CodeAction]:
        found = code_actions(document, params.range, params.context.diagnostics)
        only = params.context.only
        return [action for action in found if only is None or _wanted(str(action.kind), only)]

    options = types.CodeActionOptions(code_action_kinds=kinds)
    server.on_document(types.TEXT_DOCUMENT_CODE_ACTION, actions, [], options)


def _wanted(kind: str, only: Sequence[_Kind | str]) -> bool:
    """Return True for a requested kind or a subkind of one."""
    asked = (str(each.value) if isinstance(each, _Kind) else each for each in only)
    return any(not each or f"{kind}.".startswith(f"{each}.") for each in asked)


def code_actions(
    document: Document, range: types.Range, diagnostics: Sequence[types.Diagnostic] = ()
) -> Iterator[types.CodeAction]:
    """Yield the actions for a range of the text; `diagnostics` are the client's diagnostics in it."""
    analysis = document.analysis
    first = min(range.start.line, len(document.lines) - 1)
    last = min(range.end.line, len(document.lines) - 1)
    if last > first and range.end.character == 0:
        last -= 1
    first, last = (analysis.first_lines.get(line, line) for line in (first, last))
    problems = [p for p in analysis.problems if first <= p.span.line <= last]
    fixes = [fix for problem in problems for fix in _fixes(document, problem, diagnostics)]
    yield from sorted(fixes, key=lambda fix: not fix.is_preferred)
    yield from _type_actions(document, first, last)
    yield from _moves(document, first, last if range.start != range.end else -1)


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
    place = document.range(problem.span)
    said = [d for d in diagnostics if d.code == problem.code and d.range.start == place.start]
    for title, edits, preferred in (
        *_near(document, problem),
        *_quoting(document, problem),
        *_grouping(document, problem),
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
_typed_name = re.compile(rf"({BARE}):(?:(?:{'|'.join(NUMPY)}|seq|opt)?)").fullmatch
_bare = re.compile(BARE).fullmatch
_prefixed = re.compile(PREFIXED).fullmatch


def _quoting(document: Document, problem: Problem) -> Iterator[_Fix]:
    """Quote the names of a line that need quotes, throughout the graph."""
    if problem.code != "syntax":
        return
    for match in _name.finditer(document.analysis.lines[problem.span.line]):
        name = match[2].rstrip(":")
        if name[0] == "." or _bare(name) or _typed_name(match[2]) or _prefixed(name):
            continue
        quoted = match[1] + quote(name)
        edits = [
            replace_span(document, span, quoted)
            for span in _spelled(document, problem.span.line, match[1] + name)
        ]
        yield f"Quote the name: {quoted}", edits, True


def _grouping(document: Document, problem: Problem) -> Iterator[_Fix]:
    """Write ``...`` in a call whose graph has it, or remove it from one whose graph has none."""
    match = _group_message(problem.message)
    if match is None:
        return
    line = problem.span.line
    found = document.analysis.tokens(line)
    equals = next((at for at, token in enumerate(found) if token.name == "="), 0)
    open_list = next(at for at, token in enumerate(found) if token.start >= problem.span.end)
    inputs = match[1] == "inputs"
    items = found[open_list + 1 :] if inputs else found[:equals]
    rest = next((at for at, token in enumerate(items) if token.name == ELLIPSIS), None)
    if match[2] == "end" and rest is None:
        close = split_arguments(items)[2] if inputs else None
        end = len(document.analysis.lines[line]) if close is None else close.start
        if not inputs:
            end = items[-1].end if items else problem.span.start
        listed = bool(items) and items[0] is not close
        text = f"{', ' if listed else ''}{ELLIPSIS}{'' if inputs or items else ' = '}"
        yield f"Add {ELLIPSIS}", [replace_span(document, Span(line, end, end), text)], True
    elif match[2] == "do not end" and rest is not None:
        start = items[rest - 1].start if rest else items[rest].start
        yield f"Remove {ELLIPSIS}", [replace_span(document, Span(line, start, items[rest].end), "")], True


_group_message = re.compile(r"the (inputs|outputs) of @.* (end|do not end) in \.\.\.").fullmatch


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
    analysis, span = document.analysis, problem.span
    line = span.line
    last = analysis.last_lines.get(line, line)
    if problem.code == "unread-view":
        removal = remove_lines(document, first_comment(document, line), last)
        yield "Remove the view", [removal], False
    if problem.code != "unused":
        return
    named = analysis.lines[line][span.start : span.end]
    if named.startswith("@"):
        yield f"Remove {named}", [remove_graph(document, analysis.chunk_at(line))], False
        return
    event = analysis.event_at(line)
    # A statement with several outputs may have a blank, `_`, for each.
    outputs = list(takewhile(lambda token: token.name != "=", tokens(analysis.lines[line])))
    several = any(token.name == "," and token.kind == "operator" for token in outputs)
    if isinstance(event, StatementEntry) and len(event.names.defines) == 1 and not several:
        first = first_comment(document, line)
        yield f"Remove the statement that defines {named}", [remove_lines(document, first, last)], False
        return
    place, text = _left_out(document, span)
    yield f"Omit {named}", [replace_span(document, place, text)], False


def _left_out(document: Document, span: Span) -> tuple[Span, str]:
    """Return the span to replace and its replacement, to omit one of several or an optional definition."""
    text = document.analysis.lines[span.line]
    found = tokens(text)
    at = next(i for i, token in enumerate(found) if token.start == span.start)
    end = (type_after(found, at) or found[at]).end
    if kind_of_line(text) == "while":
        word = found[at - 1]  # count
        start = word.start - text[: word.start].endswith(" ")
        return Span(span.line, start, end), ""
    following = next((token for token in found if token.start >= end), None)
    if following is not None and following.name == "=" and found[0].name == "}":
        # A loop result, ``%y: T = %s``, may be omitted.
        return _result_span(span.line, text, found, at), ""
    return Span(span.line, span.start, end), "_"


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


# -- rewriting -------------------------------------------------------------------------------------------


def _type_actions(document: Document, first: int, last: int) -> Iterator[types.CodeAction]:
    """Insert the types that are inferred but not written."""
    missing = list(missing_types(document.analysis, first, last))
    found = [definition for each in missing for definition in each.definitions]
    if not found:
        return
    edits = [replace_span(document, each.span, each.text) for each in missing]
    only = found[0]
    title = f"Write {len(found)} missing types"
    if len(found) == 1 and only.type is not None:
        title = f"Write the type: %{name_text(only.name)}: {print_type(only.type)}"
    yield _action(document, title, _Kind.RefactorRewrite, edits)


def _moves(document: Document, first: int, last: int) -> Iterator[types.CodeAction]:
    """Flatten the graph called on line `first`; group the lines up to `last` into a graph."""
    analysis = document.analysis
    own = analysis.chunk_at(first).name
    with suppress(CannotMove):
        edits = flatten(document, first)
        if (callee := callee_at(analysis, first)) is not None:
            note = random_note(analysis.graphs, analysis.opsets, callee.name, own)
            title = f"Flatten @{name_text(callee.name)} into this graph{note}"
            yield _action(document, title, _Kind.RefactorInline, edits)
    with suppress(CannotMove):
        if (selection := selected(analysis, first, last)) is not None:
            edits = group(document, selection)
            note = random_note(analysis.graphs, analysis.opsets, own)
            yield _action(document, f"Group into a layer{note}", _Kind.RefactorExtract, edits)
