"""The analysis of a text, queried by position; immutable, so it stays valid after the text changes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from nncdbg.ir.records import Constant, Graph, Node, Type, Value
from nncdbg.text.lexemes import PREFIX_END, Flaw, Prefixes
from nncdbg.text.types import parse_type
from nncdbg.textual_repr.language_server.graph_reading import (
    LOCAL_NAME,
    Closed,
    GraphReading,
    LoopExit,
    Opened,
    SeveralStatements,
    StatementEntry,
)
from nncdbg.textual_repr.language_server.inference import GraphTypes, HeaderSignature
from nncdbg.textual_repr.language_server.tokens import (
    Definition,
    Mention,
    Problem,
    Role,
    Span,
    Token,
    kind_of_line,
    mentions,
    tokens,
    type_of_definition,
)
from nncdbg.textual_repr.passed_values import Listed, PassedValues
from nncdbg.textual_repr.resolution import Block


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """The lines from one ``graph`` line to the next; the first chunk may be the lines before any graph.

    A block of states after the first graph begins a chunk too.  `start` is its first line.  Line numbers in
    `reading` and `types` are relative to it.
    """

    start: int
    reading: GraphReading
    types: GraphTypes
    signature: HeaderSignature | None
    """None if the header does not parse, and for the lines before the first graph."""

    @property
    def lines(self) -> Sequence[str]:
        """Return the lines, with each statement of several lines at its first, and the others empty."""
        return self.reading.rows

    @property
    def block(self) -> Block | None:
        """Return the block of the graph."""
        return self.reading.header

    @property
    def name(self) -> str:
        return self.block.name if self.block is not None else ""

    @property
    def end(self) -> int:
        """Return the line after the last one."""
        return self.start + len(self.lines)

    @property
    def header_span(self) -> Span:
        """Return the span of the name in the header of the graph."""
        found = next((t for t in tokens(self.lines[0]) if t.kind == "graph"), None)
        return Span(self.start, found.start, found.end) if found else Span(self.start, 0, len(self.lines[0]))

    def line_of(self, number: int) -> int:
        """Convert a parser line number (1-based, from the time of parsing) to a line of the text."""
        return number - 1 - self.reading.before + self.start


@dataclass(frozen=True, slots=True)
class CallSite:
    """A call of a graph: `span` is that of its ``@name``, `caller` the chunk that contains the call."""

    name: str
    span: Span
    caller: Chunk


class Analysis:
    """The analysis of one version of a text. See `document` for its interface.

    `lines` has each statement of several lines at its first line, with the line ends; the others are empty.
    """

    def __init__(
        self,
        lines: Sequence[str],
        chunks: Sequence[Chunk],
        opsets: Mapping[str, int],
        prefixes: Prefixes,
        problems: list[Problem],
    ) -> None:
        self.lines = lines
        self.chunks = chunks
        self.opsets = opsets
        self.prefixes = prefixes
        self.problems = problems
        self._starts = [chunk.start for chunk in chunks]
        self.state_block = Block("states", 0)
        """The scope of the states."""
        self.last_lines = {
            chunk.start + first: chunk.start + last
            for chunk in chunks
            for first, last in chunk.reading.last_lines.items()
        }
        """The last lines of the statements of several lines, by their first."""
        self.first_lines = {
            line: first for first, last in self.last_lines.items() for line in range(first + 1, last + 1)
        }
        """The first lines of the statements of several lines, by their further ones."""

    @cached_property
    def graphs(self) -> dict[str, Chunk]:
        """Return the graphs by name in text order, the entry first; of duplicate names, the first graph."""
        found: dict[str, Chunk] = {}
        for chunk in self.chunks:
            if chunk.block is not None and chunk.name:
                found.setdefault(chunk.name, chunk)
        return found

    @property
    def streams(self) -> Mapping[int, str]:
        """Return the devices of the streams that the text declares."""
        return self.chunks[0].reading.streams

    # -- by position ---------------------------------------------------------------------------------

    def chunk_at(self, line: int) -> Chunk:
        """Return the chunk that contains a line."""
        return self.chunks[max(0, bisect_right(self._starts, line) - 1)]

    def block_at(self, line: int) -> Block | None:
        """Return the block around a line; for a line that opens or closes a block, the enclosing block."""
        chunk = self.chunk_at(line)
        own = line - chunk.start
        block = chunk.reading.blocks[own] if own < len(chunk.lines) else None
        kind = kind_of_line(self.lines[line])
        if kind == "}" and block is not None:
            return block.parent
        return None if kind == "graph" else block

    def block_opened_at(self, line: int) -> Block | None:
        """Return the block that a line opens: ``graph``, ``if``, ``} else`` or ``while``."""
        event = self.event_at(line)
        return event.block if isinstance(event, Opened) else None

    def event_at(self, line: int) -> object:
        """Return the parse result of a line: an Event of `graph_reading`."""
        chunk = self.chunk_at(line)
        return chunk.reading.events[line - chunk.start]

    def node_at(self, line: int) -> Node | None:
        """Return the op, call or break of a line; an ``if`` or ``while`` is found at its last line."""
        event = self.event_at(line)
        if isinstance(event, SeveralStatements):
            event = event.entries[-1]
        if isinstance(event, StatementEntry):
            return event.content if isinstance(event.content, Node) else None
        return event.node if isinstance(event, (Closed, LoopExit)) else None

    def constant_at(self, line: int) -> Constant | None:
        event = self.event_at(line)
        content = event.content if isinstance(event, StatementEntry) else None
        return content if isinstance(content, Constant) else None

    def prefixes_at(self, line: int) -> Prefixes:
        """Return the prefixes of the names in a line."""
        chunk = self.chunk_at(line)
        return chunk.reading.prefixes_at(line - chunk.start)

    def tokens(self, line: int) -> tuple[Token, ...]:
        """Return the tokens of the statement that begins at a line, with names in full."""
        return tokens(self.lines[line], self.prefixes_at(line))

    def token_at(self, line: int, column: int) -> Token | None:
        """Return the token under a cursor; between two tokens, the one that is a name."""
        touched = [t for t in self.tokens(line) if t.start <= column <= t.end]
        if len(touched) > 1:
            touched.sort(key=lambda t: (t.kind == "operator", t.start != column))
        return touched[0] if touched else None

    def mention_at(self, line: int, column: int) -> Mention | None:
        """Return the value name under a cursor, its end included."""
        return next((m for m in self.mentions(line) if m.start <= column <= m.end), None)

    def mentions(self, line: int) -> tuple[Mention, ...]:
        """Return the values that a line names, from left to right."""
        return mentions(self.lines[line], self.prefixes_at(line))

    # -- values --------------------------------------------------------------------------------

    def scope_of(self, line: int, mention: Mention) -> Block | None:
        """Return the block in which the name of a mention is looked up."""
        if mention.scope == "inner":
            return self.block_opened_at(line)
        chunk = self.chunk_at(line)
        block = chunk.reading.blocks[line - chunk.start]
        if mention.scope == "closed" or kind_of_line(self.lines[line]) != "}":
            return block
        return block.parent if block is not None else None

    def definition_of(self, line: int, mention: Mention) -> Definition | None:
        """Return the definition of a name in a line; None if it is not defined."""
        if kind_of_line(self.lines[line]) == "track":
            return self._tracked(line, mention.name)
        block = owner(self.scope_of(line, mention), mention.name)
        if block is not None:
            return self.definition(block, mention.name, line)
        return self._definition_elsewhere(line, mention.name)

    def _definition_elsewhere(self, line: int, name: str) -> Definition | None:
        """Return the definition of a state, or of a value that another graph passes to this one."""
        place = self.states.get(name)
        if place is not None:
            return self._definition_at(self.state_block, name, place, self.states_type(name))
        home = self.passed.homes.get(name)
        if home is None or name not in self.chunk_at(line).reading.deferred_names:
            return None
        return self.definition(home.reading.opened[0], name, home.start)

    @cached_property
    def states(self) -> dict[str, int]:
        """Return the lines of the states by name."""
        return {
            name: chunk.start + line
            for chunk in reversed(self.chunks)
            for name, line in chunk.reading.own_states.items()
        }

    def states_type(self, name: str) -> Type | None:
        """Return the type of a state."""
        chunk = self.chunk_at(self.states[name])
        return chunk.reading.state_types.get(name)

    @cached_property
    def passed(self) -> ValuesBetweenGraphs:
        """Return the values that graphs pass to each other under their own names."""
        return ValuesBetweenGraphs(self.graphs, self.states)

    def tracked_graphs(self, line: int) -> list[Chunk]:
        """Return the graphs whose values a ``track`` line may name: that of its run, then those it calls."""
        kinds = ("run", "evaluate")
        above = next((at for at in range(line, -1, -1) if kind_of_line(self.lines[at]) in kinds), None)
        if above is None:
            return []
        names = [token.name for token in tokens(self.lines[above]) if token.kind in ("graph", "label")]
        found: list[Chunk] = []
        for name in names:
            chunk = self.graphs.get(name)
            if chunk is not None and chunk not in found:
                found.append(chunk)
                names += [
                    site.name for site in self.calls(chunk) if self.block_at(site.span.line) is not None
                ]
        return found

    def track_lines(self) -> Iterator[int]:
        """Yield the lines with a track."""
        for chunk in self.chunks:
            yield from (chunk.line_of(track.line) for track in chunk.reading.tracks)

    def _tracked(self, line: int, name: str) -> Definition | None:
        """Return the definition of a value that a ``track`` line names; None for data."""
        for chunk in self.tracked_graphs(line):
            if chunk.block is not None and name in chunk.block.names:
                return self.definition(chunk.block, name, chunk.start)
        place = self.states.get(name)
        if place is None:
            return None
        return self._definition_at(self.state_block, name, place, self.states_type(name))

    def definition(self, block: Block, name: str, line: int) -> Definition | None:
        """Return the definition of `name` in `block` itself; `line` is any line of the same graph."""
        number = block.names.get(name)
        if number is None:
            return None
        chunk = self.chunk_at(line)
        return self._definition_at(block, name, chunk.line_of(number), chunk.types.of(block, name))

    def _definition_at(self, block: Block, name: str, place: int, known: Type | None) -> Definition | None:
        """Return the definition of a value by the statement that begins at the line `place`."""
        text = self.lines[place]
        named = [m for m in self.mentions(place) if m.name == name]
        mark = next((m for m in named if m.defines), named[0] if named else None)
        if mark is None:
            return None
        span = Span(place, mark.start, mark.end)
        role = "state" if block is self.state_block else self._role(place, mark)
        return Definition(name, block, span, role, written_type(text, mark), known)

    def _role(self, line: int, mark: Mention) -> Role:
        text = self.lines[line]
        kind = kind_of_line(text)
        if kind == "graph":
            return "input"
        if kind == "while":
            return "counter" if text[: mark.start].rstrip().endswith("count") else "carried"
        return "constant" if self.constant_at(line) is not None else "result"

    def type_of(self, line: int, name: str) -> Type | None:
        """Return the type of the value that `name` refers to at a line."""
        return self.chunk_at(line).types.of(self.block_at(line), name)

    def references(self, definition: Definition) -> list[Span]:
        """Return all spans of a value in text order, its definition included."""
        name, own = definition.name, self.chunk_at(definition.span.line)
        chunks = [own]
        if definition.role == "state":
            chunks = list(self.chunks)
        elif self.passed.homes.get(name) is own and definition.block is own.block:
            chunks = [chunk for chunk in self.chunks if chunk is own or name in chunk.reading.deferred_names]
        found = []
        for chunk in chunks:
            for line, text in enumerate(chunk.lines, chunk.start):
                if name not in text and not any(mark in text for mark in ('"', PREFIX_END, LOCAL_NAME)):
                    continue
                found += [
                    Span(line, mention.start, mention.end)
                    for mention in self.mentions(line)
                    if mention.name == name and self._means(line, mention, definition)
                ]
        for line in self.track_lines():
            for mention in self.mentions(line):
                named = mention.name == definition.name and self._tracked(line, mention.name)
                if named and named.span == definition.span:
                    found.append(Span(line, mention.start, mention.end))
        return found

    def _means(self, line: int, mention: Mention, definition: Definition) -> bool:
        """Return whether a mention of its name outside of tracks means this definition."""
        if kind_of_line(self.lines[line]) == "track":
            return False
        block = owner(self.scope_of(line, mention), mention.name)
        if block is not None:
            return block is definition.block
        other = self._definition_elsewhere(line, mention.name)
        return other is not None and other.span == definition.span

    def definitions(self, chunk: Chunk) -> Iterator[Definition]:
        """Yield all values of a graph, block by block."""
        for block in chunk.reading.opened:
            found = (self.definition(block, name, chunk.start) for name in block.names)
            yield from (definition for definition in found if definition is not None)

    # -- graphs --------------------------------------------------------------------------------

    def calls(self, chunk: Chunk) -> Iterator[CallSite]:
        """Yield the calls in a graph."""
        for call in chunk.reading.calls:
            mark = call.mark
            yield CallSite(
                mark.name, Span(chunk.line_of(call.line), mark.start, mark.start + mark.width), chunk
            )

    def calls_of(self, name: str) -> Iterator[CallSite]:
        """Yield the calls of the graph `name` in text order."""
        for chunk in self.chunks:
            yield from (site for site in self.calls(chunk) if site.name == name)

    def graph_references(self, name: str) -> list[Span]:
        """Return all spans of the name of a graph: its header, if present, then its calls."""
        chunk = self.graphs.get(name)
        header = [chunk.header_span] if chunk is not None else []
        return header + [site.span for site in self.calls_of(name)]


class ValuesBetweenGraphs:
    """The values that graphs pass to each other under their own names, by ``...``.

    `homes` maps their names to the graphs that define them.  `missing` are names that no call returns.
    """

    def __init__(self, graphs: Mapping[str, Chunk], states: Collection[str]) -> None:
        blocks = {name: chunk.block for name, chunk in graphs.items() if chunk.block is not None}
        self._listed = {name: block.listed for name, block in blocks.items() if block.listed is not None}
        self.homes: dict[str, Chunk] = {}
        self.missing: Collection[str] = ()
        self._graphs: dict[str, Graph] = {}
        if not self._listed:
            return
        written = {name: block.graph() for name, block in blocks.items()}
        passed = PassedValues(written, self._listed, next(iter(graphs)), states)
        self.missing = passed.missing
        self._graphs = passed.graphs()
        read = {name for chunk in graphs.values() for name in chunk.reading.deferred_names}
        for graph, chunk in graphs.items():
            for name in passed_names(blocks[graph], read, blocks):
                self.homes.setdefault(name, chunk)

    def inputs(self, graph: str) -> list[Value]:
        """Return the values that ``...`` stands for in the inputs of a graph."""
        count = self._listed.get(graph, Listed()).inputs
        return [] if count is None else list(self._graphs[graph].inputs[count:])

    def outputs(self, graph: str) -> list[Value]:
        """Return the values that ``...`` stands for in the outputs of a graph."""
        count = self._listed.get(graph, Listed()).outputs
        return [] if count is None else list(self._graphs[graph].outputs[count:])


def passed_names(block: Block, read: Collection[str], blocks: Mapping[str, Block]) -> dict[str, Type | None]:
    """Return which of the names are defined by statements of a graph, with their written types.

    A call whose graph returns a value of this name only passes it on.
    """
    found: dict[str, Type | None] = {}
    for name in block.names.keys() & read:
        at = bisect_left(block.lines, block.names[name])
        node = block.nodes[at] if at < len(block.lines) and block.lines[at] == block.names[name] else None
        value = next((value for value in node.outputs if value.name == name), None) if node else None
        if node is None or value is None:
            continue
        called = blocks.get(node.called or "")
        if called is None or all(output.name != name for output in called.outputs):
            found[name] = value.type
    return found


def owner(scope: Block | None, name: str) -> Block | None:
    """Return the block that defines the name as seen from `scope`."""
    while scope is not None and name not in scope.names:
        scope = scope.parent
    return scope


def written_type(text: str, mention: Mention) -> Type | None:
    """Return the type after a definition in its line, None if there is none."""
    pieces = tokens(text)
    at = next(i for i, token in enumerate(pieces) if token.start == mention.start)
    token = type_of_definition(pieces, at)
    try:
        return parse_type(text[token.start : token.end]) if token is not None else None
    except Flaw:
        return None
