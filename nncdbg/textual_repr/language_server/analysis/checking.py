"""Spans of the errors of a statement, and ops without a schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nncdbg.engine.errors import GraphError, NncdbgError
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import schema, split, version_of, versions_of
from nncdbg.engine.text.lexemes import nearest
from nncdbg.engine.text.prefixes import Prefixes
from nncdbg.ir.records import DEFAULT_DOMAIN, Node, Operand
from nncdbg.textual_repr.blocks import Block
from nncdbg.textual_repr.language_server.analysis.events import (
    BlockEnded,
    Closed,
    Event,
    Left,
    Opened,
    StatementEntry,
)
from nncdbg.textual_repr.language_server.analysis.reading import GraphReading
from nncdbg.textual_repr.language_server.document.records import Problem, Span
from nncdbg.textual_repr.language_server.document.tokens import arguments, kind_of_line, mentions, tokens
from nncdbg.textual_repr.resolution import shown


def problems_of(
    entry: StatementEntry, text: str, errors: Sequence[NncdbgError], opsets: Mapping[str, int]
) -> tuple[Problem, ...]:
    """Return the problems of an op or call with these errors; their spans are in line 0."""
    node = entry.content
    assert isinstance(node, Node)
    assert entry.mark is not None
    op = Span(0, entry.mark.start, entry.mark.start + entry.mark.width)
    found = [_problem(error, entry, node, text, op, opsets) for error in errors]
    return (*found, *(_unknown_op(node, op, opsets) if node.op[0] != "@" else ()))


def _problem(
    error: NncdbgError, entry: StatementEntry, node: Node, text: str, op: Span, opsets: Mapping[str, int]
) -> Problem:
    code = error.code if isinstance(error, GraphError) else "type"
    span, hint = _span(error, code, entry, node, text, op), error.hint
    known = schema(node.op, version_of(node.op, opsets))
    if known is not None and error.attribute is not None and error.attribute not in known.attributes:
        span = Span(0, *arguments(text).names[error.attribute])
        hint = nearest(error.attribute, known.attributes) or hint
    return Problem(span, error.message, code, hint=hint)


def _span(error: NncdbgError, code: str, entry: StatementEntry, node: Node, text: str, op: Span) -> Span:
    """Return the operand, attribute or output that an error names, else the op."""
    if error.output is not None:
        name = node.outputs[error.output].name
        mark = next((mark for mark in entry.names.defines if mark.name == name), None)
        if mark is None:
            return op
        return Span(0, mark.start, mark.start + mark.width) if code == "arity" else type_span(text, 0, name)
    pieces = arguments(text)
    if error.attribute is not None and error.attribute in pieces.attributes:
        return Span(0, *pieces.attributes[error.attribute])
    columns = pieces.operands
    if error.operand is not None and error.operand < len(columns):
        start, end = columns[error.operand]
        if code == "arity" and node.inputs[error.operand] is not None:
            end = columns[-1][1]  # all excess operands
        return Span(0, start, end)
    return Span(0, *columns[0]) if len(columns) == 1 and code == "type" else op


def type_span(text: str, line: int, name: str) -> Span:
    """Return the span of the type after the definition of a value; the name if it has no type."""
    pieces = tokens(text)
    for at, token in enumerate(pieces):
        if token.kind == "value" and token.name == name:
            typed = next((t for t in pieces[at + 1 : at + 3] if t.kind == "type"), token)
            return Span(line, typed.start, typed.end)
    return Span(line, 0, len(text))


def span_in_block(
    error: NncdbgError, event: Event, block: Block | None, line: int, text: str, prefixes: Prefixes
) -> Span:
    """Return the span of the error of a line that opens, closes or ends a block."""
    if isinstance(event, Closed) and error.output is not None:
        return type_span(text, line, event.node.outputs[error.output].name)
    if isinstance(event, Opened) and event.block.kind == "body" and error.output is not None:
        return type_span(text, line, event.block.inputs[error.output].name)
    operand: Operand = None
    if isinstance(event, BlockEnded) and block is not None and error.operand is not None:
        operand = (block.results or ())[error.operand].name
    elif isinstance(event, Opened) and event.block.header is not None:
        operand = event.block.header.inputs[0]
    elif isinstance(event, Left):
        operand = event.node.inputs[0]
    named = [mention for mention in mentions(text, prefixes) if mention.name == operand]
    if named:
        mention = named[-1] if isinstance(event, BlockEnded) else named[0]
        return Span(line, mention.start, mention.end)
    return Span(line, len(text) - len(text.lstrip()), len(text.rstrip()))


def _unknown_op(node: Node, op: Span, opsets: Mapping[str, int]) -> Iterator[Problem]:
    """Report an op without a schema or declaration; it is legal, but cannot be run."""
    version = version_of(node.op, opsets)
    if schema(node.op, version) is not None or lookup(node.op, version) is not None:
        return
    domain, _ = split(node.op)
    versions = versions_of(node.op)
    if domain != DEFAULT_DOMAIN:
        message = f"{node.op} has an unknown domain: running it fails"
        yield Problem(op, message, "unknown-op", "information")
    elif versions:
        hint = f"it was added in opset {versions[0]}"
        yield Problem(op, f"{node.op} is not in opset {version}", "unknown-op", "warning", hint)
    else:
        message = f"ONNX has no op {node.op}: running it fails"
        yield Problem(op, message, "unknown-op", "warning", unknown=node.op)


def unused_values(reading: GraphReading, lines: Sequence[str]) -> Iterator[Problem]:
    """Yield a hint per unused value, except graph inputs and carried values, which belong to an interface."""
    for block in reading.opened:
        if block.kind == "broken":
            continue
        needed = {value.name for value in block.inputs} - _counters(block)
        for name in block.names.keys() - reading.used[block] - needed:
            line = block.names[name] - 1 - reading.before
            yield from _hint(lines[line], reading.prefixes, line, name)


def _counters(block: Block) -> set[str]:
    """Return the loop counter of a block, which may be left unused."""
    return {block.inputs[0].name} if block.kind == "body" and block.inputs else set()


def _hint(text: str, prefixes: Prefixes, line: int, name: str) -> Iterator[Problem]:
    found = mentions(text, prefixes)
    mark = next((m for m in found if m.defines and m.name == name), None)
    if mark is None:
        return
    several = sum(m.defines for m in found) > 1 or kind_of_line(text) == "}"
    hint = "write _ for an unused output" if several else None
    message = f"{shown(name)} is never used"
    yield Problem(Span(line, mark.start, mark.end), message, "unused", "hint", hint)
