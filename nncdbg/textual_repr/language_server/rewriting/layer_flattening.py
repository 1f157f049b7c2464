"""Replace a call of a graph by the statements of the graph (inlining); results are unchanged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lsprotocol import types

from nncdbg.engine.errors import GraphError
from nncdbg.engine.inference.statements import literal_dtype
from nncdbg.engine.inference.types import bind_symbols, literal_array, type_of_array, with_symbols
from nncdbg.engine.text.lexemes import Flaw, name_text
from nncdbg.engine.text.types import parse_type, print_type
from nncdbg.ir.names import claimed_name
from nncdbg.ir.records import Literal, Node, Type
from nncdbg.textual_repr.blocks import Block
from nncdbg.textual_repr.language_server.analysis.analysis import Analysis, Chunk
from nncdbg.textual_repr.language_server.document.document import Document
from nncdbg.textual_repr.language_server.document.line_edits import remove_lines, replace_lines
from nncdbg.textual_repr.language_server.document.records import Definition, Mention, Token
from nncdbg.textual_repr.language_server.document.tokens import tokens
from nncdbg.textual_repr.language_server.features.symbols import last_line
from nncdbg.textual_repr.literals import literal_text


class CannotMove(Exception):
    """Raised for statements that cannot be moved, such as statements with errors."""


def callee_at(analysis: Analysis, line: int) -> Chunk | None:
    """Return the graph called on a line, if the call can be replaced by its statements."""
    node = analysis.node_at(line)
    if node is None or not node.op.startswith("@"):
        return None
    callee = analysis.graphs.get(node.op[1:])
    if callee is None or callee.signature is None or callee is analysis.chunk_at(line):
        return None
    block = callee.block
    if block is None or not block.end or callee.reading.broken or callee.reading.problems:
        return None
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
    edits = [replace_lines(document, line, line, lines)]
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
        return self.analysis.prefixes.spell(name)

    def fresh(self, name: str) -> str:
        """Return a name similar to `name` that the caller does not use."""
        return claimed_name(name, self.taken)

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
        self.renamed[self.block, name] = named = self.fresh(name)
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
            declared = f": {print_type(result.type)}" if result.type is not None else ""
            self.after.append(f"%{self.spell(result.name)}{declared} = Identity(%{same})")

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
                yield ""
                continue
            moved = self.moved(callee.start + own, text)
            if callee.reading.blocks[own] is self.block and moved.lstrip().startswith("##!"):
                moved = moved.replace("##!", "#", 1)  # a comment of the graph, which is removed
            yield indent + (moved.removeprefix(base) if moved.startswith(base) else moved.lstrip())

    def moved(self, line: int, text: str) -> str:
        """Return a line with the caller's names and with sizes in place of the callee's symbols."""
        pieces = tokens(text)
        marks = {mention.start: mention for mention in self.analysis.mentions(line)}
        out: list[str] = []
        end = 0
        pending: Type | None = None
        for at, token in enumerate(pieces):
            out.append(text[end : token.start])
            end = token.end
            mark = marks.get(token.start) if token.kind == "value" else None
            if mark is not None:
                name = self.name(line, mark)
                out.append(f"%{self.spell(name)}")
                pending = self.written.get(name) if mark.defines else None
                if pending is not None and not _typed(pieces, at):
                    out.append(f": {print_type(pending)}")
                    pending = None
            elif token.kind == "type":
                out.append(print_type(pending) if pending is not None else self.type_text(text, token))
                pending = None
            else:
                out.append(text[token.start : token.end])
        return "".join(out) + text[end:]

    def name(self, line: int, mark: Mention) -> str:
        found = self.analysis.definition_of(line, mark)
        if found is None:
            raise CannotMove
        return self.name_of(found)

    def name_of(self, found: Definition) -> str:
        key = found.block, found.name
        if key not in self.renamed:
            self.renamed[key] = self.fresh(found.name)
        return self.renamed[key]

    def type_text(self, text: str, token: Token) -> str:
        try:
            known = parse_type(text[token.start : token.end])
        except Flaw as flaw:
            raise CannotMove from flaw
        return print_type(with_symbols(known, self.sizes))


def _typed(pieces: tuple[Token, ...], at: int) -> bool:
    """Return True if a type follows the name at token `at`."""
    return at + 2 < len(pieces) and pieces[at + 1].name == ":" and pieces[at + 2].kind == "type"


def random_note(chunks: Mapping[str, Chunk], opsets: Mapping[str, int], *names: str) -> str:
    """Return a title suffix if the graphs use random numbers, which depend on the position of their op."""
    from nncdbg.engine.ops import lookup
    from nncdbg.engine.ops.schema import version_of

    nodes = (n for name in names if name in chunks for b in chunks[name].reading.opened for n in b.nodes)
    ops = {
        node.op for node in nodes if node.op not in ("if", "while", "break") and not node.op.startswith("@")
    }
    declared = (lookup(op, version_of(op, opsets)) for op in ops)
    drawing = any(op is not None and op.random for op in declared)
    return " (random numbers will differ)" if drawing else ""
