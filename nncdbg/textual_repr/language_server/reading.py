"""The lines of one graph read by the parser, with what an editor needs beside the records.

What was read of a line is kept by its text, so that a line which stays as it is costs a look-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from nncdbg.engine.graph import Constant, Literal, Node, Type
from nncdbg.textual_repr.blocks import Block
from nncdbg.textual_repr.language_server.records import Problem, Span
from nncdbg.textual_repr.language_server.tokens import mentions
from nncdbg.textual_repr.lexemes import Flaw
from nncdbg.textual_repr.parser import Parser
from nncdbg.textual_repr.resolution import Call
from nncdbg.textual_repr.statements import Mark, Names


@dataclass(slots=True, eq=False)
class Entry:
    """What a line with an op, a call or a constant says; the same object for all lines of the same text.

    The last fields are what the type rules said when it was last asked, for operands of these types.
    """

    content: Node | Constant
    names: Names
    mark: Mark | None
    """The op's name, or that of the graph called."""
    asked: tuple[Type | None, ...] | None = None
    results: Sequence[Type | None] = ()
    problems: tuple[Problem, ...] = ()
    uses: tuple[str, ...] = field(init=False)
    defines: tuple[str, ...] = field(init=False)
    plain: bool = field(init=False)
    """An op whose operands are all values, or not given."""

    def __post_init__(self) -> None:
        self.uses = tuple(mark.name for mark in self.names.uses)
        self.defines = tuple(mark.name for mark in self.names.defines)
        content = self.content
        self.plain = isinstance(content, Node) and content.op[0] != "@"
        if isinstance(content, Node) and any(isinstance(operand, Literal) for operand in content.inputs):
            self.plain = False


@dataclass(slots=True, eq=False)
class Opened:
    """The line opens `block`, a graph, a branch or a body."""

    block: Block


@dataclass(slots=True, eq=False)
class Closed:
    """The line closes an ``if`` or a ``while``, which is `node`; its blocks are `bodies`."""

    node: Node
    bodies: tuple[Block, ...]


@dataclass(slots=True, eq=False)
class Ended:
    """The line is the last statement of its block."""


@dataclass(slots=True, eq=False)
class Left:
    """``break unless``."""

    node: Node


Event: TypeAlias = "Entry | Opened | Closed | Ended | Left | None"


@dataclass(slots=True, eq=False)
class GraphReading:
    """What the parser made of the lines of a graph.  Lines count from 0, the first of these."""

    before: int
    """How many lines stood above when it was read: what the parser's line numbers count from."""
    events: list[Event]
    blocks: list[Block | None]
    """Per line the block that is open when it begins; one more at the end."""
    opened: list[Block]
    """All blocks, in the order of their first lines."""
    used: dict[Block, set[str]]
    calls: list[Call]
    problems: list[Problem]
    header: Block | None = None
    broken: bool = False
    """Lines are missing or wrong in a way that leaves its blocks open or its header unread."""
    opsets: dict[str, int] = field(default_factory=dict)
    stores: list[str] = field(default_factory=list)


class GraphReader(Parser):
    """Reads the lines from one ``graph`` to the next; `before` lines stand above them in the text."""

    def __init__(self, lines: Sequence[str], before: int, known: dict[str, Entry]) -> None:
        super().__init__(lines, None, before)
        self.known = known
        self.problems: list[Problem] = []
        self.opened: list[Block] = []
        self.used: dict[Block, set[str]] = {}
        self.entered: Entry | None = None

    def read(self) -> GraphReading:
        """All lines; nothing is raised."""
        events: list[Event] = []
        blocks: list[Block | None] = []
        known, before = self.known, self.before
        for index, text in enumerate(self.lines):
            block = self.block
            blocks.append(block)
            entry = known.get(text)
            if entry is not None and block is not None and not block.end:
                if not self._take_plain(block, entry, before + index + 1):
                    self._take(block, entry, before + index + 1)
                events.append(entry)
            else:
                events.append(self._event(text, before + index + 1))
        blocks.append(self.block)
        self.close_unclosed(before + len(self.lines))
        header = self.opened[0] if self.opened and self.opened[0].kind in ("graph", "broken") else None
        self._pass_uses_on()
        return GraphReading(
            before,
            events,
            blocks,
            self.opened,
            self.used,
            self.calls,
            self.problems,
            header,
            bool(self.broken),
            self.opsets,
            self.stores,
        )

    def _take_plain(self, block: Block, entry: Entry, number: int) -> bool:
        """The short way for nearly every line: an op, no comment, names in order; False if it is not that."""
        names = block.names
        if not entry.plain or block.parent is not None or self.comment or block.kind == "broken":
            return False
        for name in entry.uses:
            if name not in names:
                return False
        for name in entry.defines:
            if name in names:
                return False
        if len(entry.defines) == 1:
            names[entry.defines[0]] = number
        elif len(set(entry.defines)) < len(entry.defines):
            return False
        else:
            for name in entry.defines:
                names[name] = number
        block.nodes.append(entry.content)  # type: ignore[arg-type]
        block.lines.append(number)
        self.used[block].update(entry.uses)
        return True

    def _take(self, block: Block, entry: Entry, number: int) -> None:
        """A line that was read before."""
        content = entry.content
        if isinstance(content, Node):
            assert entry.mark is not None
            super().enter(block, content, entry.names, entry.mark, number)
        else:
            super().enter_constant(block, content, entry.names, number)

    def _event(self, text: str, number: int) -> Event:
        outer = self.block
        count = len(self.opened)
        flaws = len(self.problems)
        self.entered = None
        around = outer.parent if outer is not None else None
        length = -1 if around is None else len(around.nodes)
        own = 0 if outer is None else len(outer.nodes)
        ended = outer is None or bool(outer.end)
        self.line(text, number)
        if len(self.opened) > count:
            return Opened(self.opened[-1])
        if self.entered is not None:
            if len(self.problems) == flaws or all(p.code != "syntax" for p in self.problems[flaws:]):
                self.known[text] = self.entered
            return self.entered
        if outer is None:
            return None
        if self.block is around and around is not None and len(around.nodes) > length:
            header = outer.header
            assert header is not None
            return Closed(around.nodes[-1], (outer,) if header.branch is None else (header.branch, outer))
        if self.block is outer and len(outer.nodes) > own:
            return Left(outer.nodes[-1])
        return Ended() if outer.end and not ended and outer.results is not None else None

    # -- what the parser tells on its way --------------------------------------------------------

    def report(self, line: int, flaw: Flaw) -> None:
        own = line - 1 - self.before
        span = Span(own, flaw.start, flaw.start + max(1, flaw.width))
        related: tuple[tuple[Span, str], ...] = ()
        if flaw.related is not None:
            place = Span(flaw.related - 1 - self.before, 0, -1)
            related = ((place, "it is defined here"),)
        self.problems.append(Problem(span, flaw.message, flaw.code, hint=flaw.hint, related=related))

    def open(self, block: Block, names: Names) -> None:
        super().open(block, names)
        self.opened.append(block)
        self.used[block] = set()

    def open_broken(self, outer: Block | None, text: str, number: int) -> None:
        super().open_broken(outer, text, number)
        assert self.block is not None
        self.opened.append(self.block)
        self.used[self.block] = set()

    def resolve(self, names: Names, number: int) -> None:
        block = self.block
        if block is not None:
            self.used[block].update([mark.name for mark in names.uses])
        super().resolve(names, number)

    def salvage(self, text: str, number: int) -> None:
        """A line that failed still uses what it names."""
        if self.block is not None:
            self.used[self.block].update(m.name for m in mentions(text) if not m.defines)
        super().salvage(text, number)

    def enter(self, block: Block, node: Node, names: Names, mark: Mark, number: int) -> None:
        self.entered = Entry(node, names, mark)
        super().enter(block, node, names, mark, number)

    def enter_constant(self, block: Block, constant: Constant, names: Names, number: int) -> None:
        self.entered = Entry(constant, names, None)
        super().enter_constant(block, constant, names, number)

    def _pass_uses_on(self) -> None:
        """What a block uses and does not define is used by the block around it."""
        for block in reversed(self.opened):
            if block.parent is not None:
                self.used[block.parent].update(self.used[block] - block.names.keys())
