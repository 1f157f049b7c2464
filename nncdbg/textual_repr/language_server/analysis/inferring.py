"""Type inference for a whole graph, block by block in line order, and its type errors."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from nncdbg.engine.errors import NncdbgError
from nncdbg.engine.inference.graphs import TypeRules
from nncdbg.ir.records import Constant, Node, Type, Value
from nncdbg.textual_repr.blocks import Block, BlockHeader
from nncdbg.textual_repr.language_server.analysis.checking import problems_of, span_in_block
from nncdbg.textual_repr.language_server.analysis.events import (
    BlockEnded,
    Closed,
    Left,
    Opened,
    StatementEntry,
)
from nncdbg.textual_repr.language_server.analysis.reading import GraphReading
from nncdbg.textual_repr.language_server.analysis.stretches import MOST, Stretch
from nncdbg.textual_repr.language_server.document.memory import AnalysisMemory
from nncdbg.textual_repr.language_server.document.records import Problem


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


def infer(
    reading: GraphReading,
    lines: Sequence[str],
    memory: AnalysisMemory,
    signatures: Mapping[str, HeaderSignature],
) -> Generator[None, None, GraphTypes]:
    """Infer the types of the graph `reading`, in steps; `signatures` are those of its callees."""
    return _Inference(reading, lines, memory, signatures).steps()


class _Inference(TypeRules):
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
            self.types[header].update(self.reading.states)
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
                stretch.answers.append((asked, [known.get(name) for name in stretch.names]))
        else:
            known.update(zip(stretch.names, types, strict=True))

    def event(self, line: int) -> None:
        event, block = self.reading.events[line], self.reading.blocks[line]
        if isinstance(event, Opened):
            self.opened(event.block, block)
        elif block is None or event is None:
            return
        elif isinstance(event, StatementEntry):
            self.entry(line, event, block)
        elif isinstance(event, Closed):
            assert block.parent is not None
            self.closed(event, block.parent)
        elif isinstance(event, Left):
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
        if node.op == "update":
            states = self.reading.states
            outputs = tuple(replace(value, type=states.get(value.name)) for value in node.outputs)
            node = replace(node, outputs=outputs)
        entry.results = self.results(node, completed)
        entry.problems = ()
        if self.errors or (node.op not in self.memory.known_ops and node.op[0] != "@"):
            entry.problems = problems_of(entry, text, self.errors, self.opsets)
            if not entry.problems:
                self.memory.known_ops.add(node.op)
            self.errors.clear()

    def operands(self, node: Node | BlockHeader, block: Block | None) -> tuple[Type | None, ...]:
        node = Node(node.op, node.inputs)
        return self.operand_types(node, partial(self.found.of, block))

    # -- blocks --------------------------------------------------------------------------------

    def opened(self, block: Block, outer: Block | None) -> None:
        known = self.types[block]
        if block.kind == "graph":
            known.update({value.name: value.type for value in block.inputs})
        elif block.kind == "body" and block.header is not None:
            types = self.loop_inputs(block.inputs, self.operands(block.header, outer)[1:])
            known.update(zip([value.name for value in block.inputs], types, strict=True))
            known.pop("", None)
        elif block.kind == "then" and block.header is not None:
            self.check_condition(self.operands(block.header, outer)[0])

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
        if event.node.op == "while":
            body = event.bodies[0]
            carried = [self.found.of(body, value.name) for value in body.inputs[1:]]
            types = self.loop_results(event.node, carried, ends[0])
        else:
            types = self.branch_results(event.node, ends)
        self.types[outer].update(
            {value.name: type_ for value, type_ in zip(event.node.outputs, types, strict=False) if value.name}
        )
