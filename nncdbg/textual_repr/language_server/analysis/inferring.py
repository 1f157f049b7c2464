"""The types of a whole graph, block by block in the order of its lines, and what does not fit together."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from nncdbg.engine.compilation.code import common_type
from nncdbg.engine.graph import (
    Constant,
    Literal,
    Node,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    Value,
    without_sizes,
)
from nncdbg.engine.text.lexemes import name_text
from nncdbg.engine.text.types import print_type
from nncdbg.textual_repr.blocks import Block
from nncdbg.textual_repr.language_server.analysis.events import Closed, Ended, Entry, Left, Opened
from nncdbg.textual_repr.language_server.analysis.reading import GraphReading
from nncdbg.textual_repr.language_server.analysis.stretches import MOST, Stretch
from nncdbg.textual_repr.language_server.document.memory import Memory
from nncdbg.textual_repr.language_server.document.records import Problem, Span
from nncdbg.textual_repr.language_server.document.tokens import arguments, mentions, tokens


@dataclass(frozen=True, slots=True)
class Signature:
    """What a call of a graph takes and gives, as far as it is known."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


@dataclass(slots=True, eq=False)
class GraphTypes:
    """The types of the values, by the block that defines them, and the problems with them."""

    types: dict[Block, dict[str, Type | None]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def of(self, block: Block | None, name: str) -> Type | None:
        """The type of the value that `name` means in `block`."""
        while block is not None:
            known = self.types.get(block)
            if known is not None and name in known:
                return known[name]
            block = block.parent
        return None


def infer(
    reading: GraphReading,
    lines: Sequence[str],
    memory: Memory,
    signatures: Mapping[str, Signature],
) -> Generator[None, None, GraphTypes]:
    """The types of the graph that `reading` is, whose calls are of graphs with these signatures; in steps."""
    return _Inference(reading, lines, memory, signatures).steps()


class _Inference:
    def __init__(
        self,
        reading: GraphReading,
        lines: Sequence[str],
        memory: Memory,
        signatures: Mapping[str, Signature],
    ) -> None:
        self.reading, self.lines, self.memory, self.signatures = reading, lines, memory, signatures
        self.found = GraphTypes()
        self.problems = self.found.problems
        self.types = self.found.types

    def steps(self) -> Generator[None, None, GraphTypes]:
        self.types.update({block: {} for block in self.reading.opened})
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
        """The values of a stretch have the types that they had for operands of these types."""
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
        if event is None:
            return
        if isinstance(event, Opened):
            self.opened(line, event.block, block)
        elif block is None:
            return
        elif isinstance(event, Entry):
            self.entry(line, event, block)
        elif isinstance(event, Closed):
            assert block.parent is not None
            self.closed(line, event, block.parent)
        elif isinstance(event, Left):
            self.condition(line, event.node, block)
        elif isinstance(event, Ended):
            self.ended(line, block)

    def report(self, line: int, columns: tuple[int, int], message: str, hint: str | None = None) -> None:
        self.problems.append(Problem(Span(line, *columns), message, "type", hint=hint))

    # -- statements ----------------------------------------------------------------------------

    def entry(self, line: int, entry: Entry, block: Block) -> None:
        content = entry.content
        known = self.types[block]
        if entry.plain and block.parent is None and not entry.problems:
            # The short way for nearly every line: the rule has been asked for operands of these types.
            types = tuple(map(known.get, content.inputs))  # type: ignore[union-attr]
            if entry.asked == types and len(entry.results) == len(entry.defines):
                for name, type in zip(entry.defines, entry.results, strict=True):
                    known[name] = type
                return
        if isinstance(content, Constant):
            known[content.value.name] = content.value.type
            return
        if content.op.startswith("@"):
            self.call(line, content, block)
            return
        if block.parent is None:
            get = known.get
            types = tuple([get(operand) if isinstance(operand, str) else None for operand in content.inputs])
        else:
            types = tuple(self.operands(content, block))
        self.memory.ask(entry, self.lines[line], types)
        for value, type in zip(content.outputs, entry.results, strict=True):
            known[value.name] = type
        if entry.problems:
            self.problems.extend(replace(p, span=replace(p.span, line=line)) for p in entry.problems)

    def operands(self, node: Node, block: Block) -> Iterator[Type | None]:
        for operand in node.inputs:
            yield self.found.of(block, operand) if isinstance(operand, str) else None

    def call(self, line: int, node: Node, block: Block) -> None:
        signature = self.signatures.get(node.op[1:])
        known = self.types[block]
        if signature is None or len(signature.inputs) != len(node.inputs):
            known.update({value.name: value.type for value in node.outputs})
            return
        sizes: dict[str, int | str | None] = {}
        columns = arguments(self.lines[line]).operands
        for index, (value, given) in enumerate(
            zip(signature.inputs, self.operands(node, block), strict=True)
        ):
            if value.type is None or given is None:
                continue
            if common_type(value.type, given) is None:
                message = (
                    f"@{name_text(node.op[1:])} takes {print_type(value.type)} as %{name_text(value.name)}"
                )
                self.report(line, columns[index], f"{message}, not {print_type(given)}")
            bind(value.type, given, sizes)
        for value, result in zip(node.outputs, signature.outputs, strict=False):
            given = None if result.type is None else bound(result.type, sizes)
            what = f"@{name_text(node.op[1:])} gives"
            known[value.name] = self.agree(line, value, given, what)
        for value in node.outputs[len(signature.outputs) :]:
            known[value.name] = value.type

    def agree(self, line: int, value: Value, found: Type | None, what: str) -> Type | None:
        """What is known of a value that is written with a type; a problem where the two contradict."""
        if value.type is None or found is None:
            return value.type or found
        common = common_type(value.type, found)
        if common is None:
            declared = f"%{name_text(value.name)} is declared {print_type(value.type)}"
            message = f"{declared} but {what} {print_type(found)}"
            self.report(line, self.written(line, value.name), message, "omit the type, or correct it")
        return common or value.type

    def written(self, line: int, name: str) -> tuple[int, int]:
        """The columns of the type behind the definition of a value, or of its name."""
        pieces = tokens(self.lines[line])
        for at, token in enumerate(pieces):
            if token.kind == "value" and token.name == name:
                typed = next((t for t in pieces[at + 1 : at + 3] if t.kind == "type"), token)
                return typed.start, typed.end
        return 0, len(self.lines[line])

    # -- blocks --------------------------------------------------------------------------------

    def opened(self, line: int, block: Block, outer: Block | None) -> None:
        known = self.types[block]
        if block.kind == "graph":
            known.update({value.name: value.type for value in block.inputs})
        elif block.kind == "body" and block.header is not None:
            self.loop(line, block, outer)
        elif block.kind == "then" and block.header is not None:
            node = Node("if", block.header.inputs)
            self.condition(line, node, outer)

    def loop(self, line: int, block: Block, outer: Block | None) -> None:
        """A carried value has the type that the text says, else the element type of its first value."""
        assert block.header is not None
        known = self.types[block]
        counter, *carried = block.inputs
        if counter.name:
            known[counter.name] = self.agree(line, counter, TensorType("i64", ()), "a counter is")
        for value, first in zip(carried, block.header.inputs[1:], strict=True):
            initial = self.found.of(outer, first) if isinstance(first, str) else None
            known[value.name] = value.type or (without_sizes(initial) if initial else None)
            if value.type is not None and initial is not None:
                self.agree(line, value, initial, "its first value is")

    def condition(self, line: int, node: Node, block: Block | None) -> None:
        """What decides is a bool."""
        operand = node.inputs[0]
        given = self.found.of(block, operand) if isinstance(operand, str) else None
        wrong = isinstance(operand, Literal) and not isinstance(operand.data, (bool, tuple))
        if wrong or (given is not None and not (isinstance(given, TensorType) and given.dtype == "bool")):
            named = [m for m in mentions(self.lines[line], self.reading.prefixes) if m.name == operand]
            text = self.lines[line]
            columns = (
                (named[0].start, named[0].end)
                if named
                else (len(text) - len(text.lstrip()), len(text.rstrip()))
            )
            said = print_type(given) if given is not None else "a literal of another type"
            self.report(
                line, columns, f"the condition must be a bool, not {said}", "compare, as in Greater(%x, 0)"
            )

    def ended(self, line: int, block: Block) -> None:
        """What a graph returns and what a loop carries on have the types that are written for them."""
        wanted = block.outputs if block.kind == "graph" else block.inputs[1:] if block.kind == "body" else ()
        for value, result in zip(wanted, block.results or (), strict=False):
            given = self.found.of(block, result.name)
            carried = value.type if block.kind == "graph" else self.found.of(block, value.name)
            if given is None or carried is None or common_type(carried, given) is not None:
                continue
            named = [m for m in mentions(self.lines[line], self.reading.prefixes) if m.name == result.name]
            columns = (named[-1].start, named[-1].end) if named else (0, len(self.lines[line]))
            where = "the graph declares" if block.kind == "graph" else f"%{name_text(value.name)} is"
            message = f"%{name_text(result.name)} is {print_type(given)}, but {where} {print_type(carried)}"
            self.report(line, columns, message)

    def closed(self, line: int, event: Closed, outer: Block) -> None:
        """The results of a block, as far as both branches agree, or as the loop carries them."""
        known = self.types[outer]
        if event.node.op == "while":
            found = self.loop_results(event.bodies[0])
        else:
            ends = [[self.found.of(b, v.name) for v in b.results or ()] for b in event.bodies]
            found = [self.branches(*pair) for pair in zip(*ends, strict=False)]
        for value, type in zip(event.node.outputs, found, strict=False):
            if value.name:
                what = "the loop returns" if event.node.op == "while" else "a branch returns"
                known[value.name] = self.agree(line, value, type, what)

    def loop_results(self, body: Block) -> list[Type | None]:
        carried = body.inputs[1:]
        found = [self.found.of(body, value.name) for value in carried]
        for value in (body.results or ())[len(carried) :]:
            each = self.found.of(body, value.name)
            if isinstance(each, TensorType) and each.shape is not None:
                found.append(TensorType(each.dtype, (None, *each.shape)))
            else:
                found.append(None)
        return found

    @staticmethod
    def branches(*types: Type | None) -> Type | None:
        first = types[0]
        if first is None or any(other is None for other in types):
            return None
        if all(other == first for other in types):
            return first
        return (
            without_sizes(first)
            if all(without_sizes(o) == without_sizes(first) for o in types if o)
            else None
        )


def bind(declared: Type, given: Type, sizes: dict[str, int | str | None]) -> None:
    """Note what the symbols in the type of an input stand for in this call."""
    if isinstance(declared, TensorType) and isinstance(given, TensorType):
        if declared.shape is not None and given.shape is not None:
            for symbol, size in zip(declared.shape, given.shape, strict=False):
                if isinstance(symbol, str):
                    sizes.setdefault(symbol, size)
    elif isinstance(declared, (SequenceType, OptionalType)) and isinstance(given, declared.__class__):
        bind(declared.element, given.element, sizes)


def bound(type: Type, sizes: Mapping[str, int | str | None]) -> Type:
    """The type of an output with the symbols of this call; a symbol of the graph's own means nothing here."""
    if not isinstance(type, TensorType):
        return type.__class__(bound(type.element, sizes))
    if type.shape is None:
        return type
    return TensorType(type.dtype, tuple(sizes.get(d) if isinstance(d, str) else d for d in type.shape))
