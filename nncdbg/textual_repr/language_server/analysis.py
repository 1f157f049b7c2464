"""The analysis of a text, queried by position; immutable, so it stays valid after the text changes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from nncdbg.ir.records import Constant, Node, Type
from nncdbg.text.lexemes import PREFIX_END, Flaw, Prefixes
from nncdbg.text.types import parse_type
from nncdbg.textual_repr.language_server.graph_reading import (
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
    type_after,
)
from nncdbg.textual_repr.resolution import Block


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """The lines from one ``graph`` line to the next; the first chunk may be the lines before any graph.

    `start` is its first line. Line numbers in `reading` and `types` are relative to it.
    """

    start: int
    lines: Sequence[str]
    reading: GraphReading
    types: GraphTypes
    signature: HeaderSignature | None
    """None if the header does not parse, and for the lines before the first graph."""

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
    """The analysis of one version of a text. See `document` for its interface."""

    def __init__(
        self,
        lines: Sequence[str],
        chunks: Sequence[Chunk],
        opsets: Mapping[str, int],
        prefixes: Prefixes,
        problems: Sequence[Problem],
    ) -> None:
        self.lines = lines
        self.chunks = chunks
        self.opsets = opsets
        self.prefixes = prefixes
        self.problems = problems
        self._starts = [chunk.start for chunk in chunks]

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

    def token_at(self, line: int, column: int) -> Token | None:
        """Return the token under a cursor; between two tokens, the one that is a name."""
        touched = [t for t in tokens(self.lines[line], self.prefixes) if t.start <= column <= t.end]
        if len(touched) > 1:
            touched.sort(key=lambda t: (t.kind == "operator", t.start != column))
        return touched[0] if touched else None

    def mention_at(self, line: int, column: int) -> Mention | None:
        """Return the value name under a cursor, its end included."""
        return next((m for m in self.mentions(line) if m.start <= column <= m.end), None)

    def mentions(self, line: int) -> tuple[Mention, ...]:
        """Return the values that a line names, from left to right."""
        return mentions(self.lines[line], self.prefixes)

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
        return self.definition(block, mention.name, line) if block is not None else None

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
        """Return the definition of a value that a ``track`` line names; None for data and states."""
        for chunk in self.tracked_graphs(line):
            if chunk.block is not None and name in chunk.block.names:
                return self.definition(chunk.block, name, chunk.start)
        return None

    def definition(self, block: Block, name: str, line: int) -> Definition | None:
        """Return the definition of `name` in `block` itself; `line` is any line of the same graph."""
        number = block.names.get(name)
        if number is None:
            return None
        chunk = self.chunk_at(line)
        place = chunk.line_of(number)
        text = self.lines[place]
        named = [m for m in self.mentions(place) if m.name == name]
        mark = next((m for m in named if m.defines), named[0] if named else None)
        if mark is None:
            return None
        span = Span(place, mark.start, mark.end)
        return Definition(
            name, block, span, self._role(place, mark), written_type(text, mark), chunk.types.of(block, name)
        )

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
        chunk = self.chunk_at(definition.span.line)
        found = []
        for own, text in enumerate(chunk.lines):
            if definition.name not in text and '"' not in text and PREFIX_END not in text:
                continue
            line = chunk.start + own
            for mention in self.mentions(line):
                same = mention.name == definition.name
                if same and owner(self.scope_of(line, mention), mention.name) is definition.block:
                    found.append(Span(line, mention.start, mention.end))
        for line in self.track_lines():
            for mention in self.mentions(line):
                named = mention.name == definition.name and self._tracked(line, mention.name)
                if named and named.span == definition.span:
                    found.append(Span(line, mention.start, mention.end))
        return found

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


def owner(scope: Block | None, name: str) -> Block | None:
    """Return the block that defines the name as seen from `scope`."""
    while scope is not None and name not in scope.names:
        scope = scope.parent
    return scope


def written_type(text: str, mention: Mention) -> Type | None:
    """Return the type after a definition in its line, None if there is none."""
    pieces = tokens(text)
    at = next(i for i, token in enumerate(pieces) if token.start == mention.start)
    token = type_after(pieces, at)
    try:
        return parse_type(text[token.start : token.end]) if token is not None else None
    except Flaw:
        return None
