"""Type inference for a whole graph, block by block in line order, and its type errors."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from nncdbg.engine.inference.graphs import TypeRules
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import schema, split, version_of, versions_of
from nncdbg.errors import GraphError, NncdbgError
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import DEFAULT_DOMAIN, Constant, Node, Operand, Type, Value
from nncdbg.text.lexemes import Prefixes, nearest
from nncdbg.textual_repr.language_server.graph_reading import (
    MOST,
    AnalysisMemory,
    BlockEnded,
    Closed,
    Event,
    GraphReading,
    LoopExit,
    Opened,
    SeveralStatements,
    StatementEntry,
    Stretch,
)
from nncdbg.textual_repr.language_server.tokens import (
    Problem,
    Span,
    arguments,
    kind_of_line,
    mentions,
    tokens,
    type_after,
    whole_line,
)
from nncdbg.textual_repr.resolution import Block, shown

# -- spans of errors -------------------------------------------------------------------------------


def problems_of(
    entry: StatementEntry, text: str, errors: Sequence[NncdbgError], opsets: Mapping[str, int]
) -> tuple[Problem, ...]:
    """Return the problems of an op or call with these errors; their spans are in line 0."""
    node = entry.content
    assert isinstance(node, Node)
    assert entry.mark is not None
    op = Span(0, entry.mark.start, entry.mark.start + entry.mark.width)
    known = schema(node.op, version_of(node.op, opsets)) if errors else None
    problems = []
    for error in errors:
        code = error.code if isinstance(error, GraphError) else "type"
        span, hint = _span(error, code, entry, node, text), error.hint
        if known is not None and error.attribute is not None and error.attribute not in known.attributes:
            span = Span(0, *arguments(text).names[error.attribute])
            hint = nearest(error.attribute, known.attributes) or hint
        problems.append(Problem(span or op, error.message, code, hint=hint))
    return (*problems, *(_unknown_op(node, op, opsets) if node.called is None else ()))


def _span(error: NncdbgError, code: str, entry: StatementEntry, node: Node, text: str) -> Span | None:
    """Return the operand, attribute or output that an error names; None if it names none."""
    if error.output is not None:
        name = node.outputs[error.output].name
        mark = next((mark for mark in entry.names.defines if mark.name == name), None)
        if mark is None:
            return None
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
    return Span(0, *columns[0]) if len(columns) == 1 and code == "type" else None


def type_span(text: str, line: int, name: str) -> Span:
    """Return the span of the type after the definition of a value; the name if it has no type."""
    pieces = tokens(text)
    for at, token in enumerate(pieces):
        if token.kind == "value" and token.name == name:
            typed = type_after(pieces, at) or token
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
        operand = event.block.header.node.inputs[0]
    elif isinstance(event, LoopExit):
        operand = event.node.inputs[0]
    named = [mention for mention in mentions(text, prefixes) if mention.name == operand]
    if named:
        mention = named[-1] if isinstance(event, BlockEnded) else named[0]
        return Span(line, mention.start, mention.end)
    return whole_line(text, line)


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
        # The counter of a loop, its first input, may be left unused.
        counter = {value.name for value in block.inputs[: block.kind == "body"]}
        needed = {value.name for value in block.inputs} - counter
        for name in block.names.keys() - reading.used[block] - needed:
            line = block.names[name] - 1 - reading.before
            defined = [m for m in mentions(lines[line], reading.prefixes) if m.defines]
            several = len(defined) > 1 or kind_of_line(lines[line]) == "}"
            hint = "write _ for an unused output" if several else None
            for mark in [m for m in defined if m.name == name][:1]:
                span = Span(line, mark.start, mark.end)
                yield Problem(span, f"{shown(name)} is never used", "unused", "hint", hint)


# -- inference -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeaderSignature:
    """The operand and result types of a graph, as far as they are known."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


@dataclass(slots=True, eq=False)
class GraphTypes:
    """The types of the values, by the block that defines them, and the problems found."""

    types: dict[Block, dict[str, Type | None]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def of(self, block: Block | None, name: str) -> Type | None:
        """Return the type of the value that `name` refers to in `block`."""
        while block is not None:
            known = self.types.get(block)
            if known is not None and name in known:
                return known[name]
            block = block.parent
        return None


class LenientInference(TypeRules):
    """Infers the types of the graph `reading`, in steps; `signatures` are those of its callees."""

    def __init__(
        self,
        reading: GraphReading,
        lines: Sequence[str],
        memory: AnalysisMemory,
        signatures: Mapping[str, HeaderSignature],
    ) -> None:
        super().__init__(memory.opsets, signatures, memory.answers)
        self.reading, self.lines, self.memory = reading, lines, memory
        self.found = GraphTypes()
        self.problems = self.found.problems
        self.types = self.found.types
        self.errors: list[NncdbgError] = []
        """The errors of the statement under inference."""

    def report(self, error: NncdbgError) -> None:
        self.errors.append(error)

    def steps(self) -> Generator[None, None, GraphTypes]:
        self.types.update({block: {} for block in self.reading.opened})
        header = self.reading.header
        if header is not None:
            # Every statement of the graph and its blocks sees the states.
            self.types[header].update(self.reading.state_types)
        line, count = 0, len(self.lines)
        while line < count:
            end = min(count, line + MOST)
            while line < end:
                stretch = self.reading.stretches.get(line)
                if stretch is None:
                    self.event(line)
                    line += 1
                else:
                    self.stretch(line, stretch)
                    line += len(stretch.lines)
            yield
        return self.found

    def stretch(self, line: int, stretch: Stretch) -> None:
        """Infer the types of a stretch, or reuse those cached for the same operand types."""
        block = self.reading.blocks[line]
        assert block is not None
        known = self.types[block]
        of = known.get if block.parent is None else partial(self.found.of, block)
        asked = [of(name) for name in stretch.free]
        types = stretch.answer(asked)
        if types is None:
            problems = len(self.problems)
            for own in range(line, line + len(stretch.lines)):
                self.event(own)
            if len(self.problems) == problems:
                stretch.answers.append((asked, [known.get(name) for name in stretch.places]))
        else:
            known.update(zip(stretch.places, types, strict=True))

    def event(self, line: int) -> None:
        event, block = self.reading.events[line], self.reading.blocks[line]
        if isinstance(event, Opened):
            self.opened(event.block, block)
        elif block is None or event is None:
            return
        elif isinstance(event, StatementEntry):
            self.entry(line, event, block)
        elif isinstance(event, SeveralStatements):
            before = len(self.problems)
            for entry in event.entries:
                self.entry(line, entry, block)
            # Members of a group have the same problems.
            alike = {(each.span, each.message): each for each in self.problems[before:]}
            self.problems[before:] = alike.values()
        elif isinstance(event, Closed):
            assert block.parent is not None
            self.closed(event, block.parent)
        elif isinstance(event, LoopExit):
            self.check_condition(self.operands(event.node, block)[0])
        elif isinstance(event, BlockEnded):
            self.ended(block)
        for error in self.errors:
            span = span_in_block(error, event, block, line, self.lines[line], self.reading.prefixes)
            self.problems.append(Problem(span, error.message, "type", hint=error.hint))
        self.errors.clear()

    # -- statements ----------------------------------------------------------------------------

    def entry(self, line: int, entry: StatementEntry, block: Block) -> None:
        content = entry.content
        known = self.types[block]
        if isinstance(content, Constant):
            known[content.value.name] = content.value.type
            return
        if block.parent is None:
            get = known.get
            types = tuple([get(operand) if isinstance(operand, str) else None for operand in content.inputs])
        else:
            types = tuple(
                [self.found.of(block, name) if isinstance(name, str) else None for name in content.inputs]
            )
        # The rule of a call is the signature of its graph, which may have changed.
        if entry.asked != types or content.op[0] == "@":
            self.ask(entry, content, types, self.lines[line])
        if len(entry.defines) == len(entry.results):
            known.update(zip(entry.defines, entry.results, strict=True))
        else:
            known.update(zip([value.name for value in content.outputs], entry.results, strict=True))
        if entry.problems:
            self.problems.extend(replace(p, span=replace(p.span, line=line)) for p in entry.problems)

    def ask(self, entry: StatementEntry, node: Node, types: tuple[Type | None, ...], text: str) -> None:
        """Store in `entry` the types and problems of its statement, for operands of these types."""
        entry.asked = types
        completed = types if entry.plain else self.literal_types(node, types)
        if node.kind is Kind.UPDATE:
            states = self.reading.state_types
            outputs = tuple(replace(value, type=states.get(value.name)) for value in node.outputs)
            node = replace(node, outputs=outputs)
        entry.results = self.results(node, completed)
        entry.problems = ()
        if self.errors or (node.op not in self.memory.known_ops and node.op[0] != "@"):
            entry.problems = problems_of(entry, text, self.errors, self.opsets)
            if not entry.problems:
                self.memory.known_ops.add(node.op)
            self.errors.clear()

    def operands(self, node: Node, block: Block | None) -> tuple[Type | None, ...]:
        return self.operand_types(node, partial(self.found.of, block))

    # -- blocks --------------------------------------------------------------------------------

    def opened(self, block: Block, outer: Block | None) -> None:
        known = self.types[block]
        if block.kind == "graph":
            known.update({value.name: value.type for value in block.inputs})
        elif block.kind == "body" and block.header is not None:
            types = self.loop_inputs(block.inputs, self.operands(block.header.node, outer)[1:])
            known.update(zip([value.name for value in block.inputs], types, strict=True))
            known.pop("", None)
        elif block.kind == "then" and block.header is not None:
            self.check_condition(self.operands(block.header.node, outer)[0])

    def ended(self, block: Block) -> None:
        """Check what a graph returns and the types of the next loop-carried values."""
        names = [value.name for value in block.results or ()]
        types = [self.found.of(block, name) for name in names]
        if block.kind == "graph":
            self.check_ends(block.outputs, names, types, "the graph declares")
        elif block.kind == "body":
            carried = [Value(value.name, self.found.of(block, value.name)) for value in block.inputs[1:]]
            self.check_ends(carried, names, types)

    def closed(self, event: Closed, outer: Block) -> None:
        """Infer the results of an `if` or a `while` from those of its blocks."""
        ends = [[self.found.of(body, value.name) for value in body.results or ()] for body in event.bodies]
        if event.node.kind is Kind.WHILE:
            body = event.bodies[0]
            carried = [self.found.of(body, value.name) for value in body.inputs[1:]]
            types = self.loop_results(event.node, carried, ends[0])
        else:
            types = self.branch_results(event.node, ends)
        self.types[outer].update(
            {value.name: type_ for value, type_ in zip(event.node.outputs, types, strict=False) if value.name}
        )
