"""Parsing of the lines of one graph, with the extra records that an editor needs.

Parse results are cached by the text of their line, so an unchanged line costs one look-up; adjacent
unchanged lines (a stretch) cost one look-up together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from nncdbg.engine.inference.graphs import Answers
from nncdbg.ir.records import Constant, Literal, Node, Type
from nncdbg.text.lexemes import Flaw, Prefixes
from nncdbg.textual_repr.groups import Groups, Owners
from nncdbg.textual_repr.language_server.tokens import Problem, Span, mentions, problem_of
from nncdbg.textual_repr.parser import SEPARATOR, TextParser, plain_statement
from nncdbg.textual_repr.resolution import Block
from nncdbg.textual_repr.statements import Names, NameSpan

# -- parse results of a line -----------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class StatementEntry:
    """A line with an op, a call or a constant; equal lines share one object.

    `results` and `problems` are the last output of the type rules, stored with the operand types of that
    call.
    """

    content: Node | Constant
    names: Names
    mark: NameSpan | None
    """The name of the op or of the called graph."""
    asked: tuple[Type | None, ...] | None = None
    results: Sequence[Type | None] = ()
    problems: tuple[Problem, ...] = ()
    uses: tuple[str, ...] = field(init=False)
    defines: tuple[str, ...] = field(init=False)
    plain: bool = field(init=False)
    """An op with operands that are all values or omitted."""

    def __post_init__(self) -> None:
        self.uses = tuple([mark.name for mark in self.names.uses])
        self.defines = tuple([mark.name for mark in self.names.defines])
        content = self.content
        self.plain = isinstance(content, Node) and content.op[0] != "@"
        if isinstance(content, Node) and any(isinstance(operand, Literal) for operand in content.inputs):
            self.plain = False


@dataclass(slots=True, eq=False)
class SeveralStatements:
    """A line with several statements, such as one over groups, or with a group as its result."""

    entries: list[StatementEntry]


@dataclass(slots=True, eq=False)
class Opened:
    """The line opens `block`: a graph, a branch or a body."""

    block: Block


@dataclass(slots=True, eq=False)
class Closed:
    """The line closes an ``if`` or ``while``: `node`, with its blocks `bodies`."""

    node: Node
    bodies: tuple[Block, ...]


@dataclass(slots=True, eq=False)
class BlockEnded:
    """The line is the last statement of its block."""


@dataclass(slots=True, eq=False)
class LoopExit:
    """A ``break unless`` line."""

    node: Node


Event: TypeAlias = "StatementEntry | SeveralStatements | Opened | Closed | BlockEnded | LoopExit | None"


# -- stretches -------------------------------------------------------------------------------------
# Stretches: adjacent statements of a block that are parsed and typed as a unit.
#
# Between two keystrokes, most of a long graph is unchanged. A stretch keeps its parse results if its lines
# are the same, its operands are defined and its names are free. If its operands have cached types, its values
# keep their types too.

LEAST, MOST = 32, 256
"""Lines of a stretch: fewer bring no gain, more make each keystroke in the stretch expensive."""

_REMEMBERED = 4
"""Number of operand type combinations that are cached: one keystroke and its undo need a few."""

Types: TypeAlias = "list[Type | None]"


@dataclass(slots=True, eq=False)
class Stretch:
    """Lines without a block, a call, a ``##`` or a flaw; `events` has None for blanks and ``#``."""

    lines: list[str]
    events: list[Event]
    uses: frozenset[str]
    free: tuple[str, ...]
    """Names that are defined before the stretch."""
    places: dict[str, int]
    """The defining line of each name; 0 is the first line of the stretch."""
    nodes: list[Node]
    node_places: tuple[int, ...]
    constants: list[Constant]
    answers: deque[tuple[Types, Types]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    """Maps types of `free` to the types of the names, for cases without errors."""

    def fits(self, block: Block) -> bool:
        """Return True if `block` provides all names that the stretch uses and none that it defines."""
        missing: Sequence[str] = self.free
        for each in block.outwards():
            names = each.names
            if each.kind == "broken" or not names.keys().isdisjoint(self.places.keys()):
                return False
            missing = [name for name in missing if name not in names]
        return not missing

    def enter(self, block: Block, number: int) -> None:
        """Add the stretch to `block`; `number` is the number of its first line."""
        block.names.update({name: number + place for name, place in self.places.items()})
        block.nodes.extend(self.nodes)
        block.lines.extend([number + place for place in self.node_places])
        block.constants.extend(self.constants)

    def answer(self, asked: Types) -> Types | None:
        """Return the types of the names for these types of `free`, or None if they are not cached."""
        return next((found for known, found in self.answers if known == asked), None)


def stretch_of(lines: list[str], events: list[Event]) -> Stretch | None:
    """Return a stretch of these lines; None if they are few, or a name is redefined or used too early."""
    if len(lines) < LEAST:
        return None
    free: dict[str, None] = {}
    places: dict[str, int] = {}
    uses: set[str] = set()
    count = 0
    statements = [(at, event) for at, event in enumerate(events) if isinstance(event, StatementEntry)]
    for place, entry in statements:
        uses.update(entry.uses)
        free.update((name, None) for name in entry.uses if name not in places)
        places.update((name, place) for name in entry.defines)
        count += len(entry.defines)
    if count != len(places) or not places.keys().isdisjoint(free):
        return None
    nodes = [(at, e.content) for at, e in statements if isinstance(e.content, Node)]
    return Stretch(
        lines,
        events,
        frozenset(uses),
        tuple(free),
        places,
        [node for _, node in nodes],
        tuple(at for at, _ in nodes),
        [e.content for _, e in statements if isinstance(e.content, Constant)],
    )


# -- memory ----------------------------------------------------------------------------------------

_SPARE = 10_000
"""Lines, and outputs of type rules, cached beyond those of the current text, for undo."""


class AnalysisMemory:
    """A cache: `entries` are lines by their text, `stretches` are by the text of their first line."""

    def __init__(self) -> None:
        self.entries: dict[str, StatementEntry] = {}
        self.stretches: dict[str, Stretch] = {}
        self.opsets: Mapping[str, int] = {}
        self.answers: Answers = {}
        self.known_ops: set[str] = set()
        """Ops of these opsets that have a schema or a declaration."""

    def change_opsets(self, opsets: Mapping[str, int], entries: Iterable[StatementEntry]) -> None:
        """Switch to other type rules; `entries` includes the entries of lines with a flaw."""
        self.opsets = dict(opsets)
        for entry in (*self.entries.values(), *entries):
            entry.asked = None
        for stretch in self.stretches.values():
            stretch.answers.clear()
        self.answers.clear()
        self.known_ops.clear()

    def prune(
        self, count: int, entries: Iterable[tuple[str, StatementEntry]], stretches: Iterable[Stretch]
    ) -> None:
        """Evict old entries; the arguments describe the current text, which has `count` lines."""
        most = 2 * count + _SPARE
        if len(self.entries) > most:
            self.entries = {text: entry for text, entry in entries if text in self.entries}
        if sum(len(stretch.lines) for stretch in self.stretches.values()) > most:
            self.stretches = {stretch.lines[0]: stretch for stretch in stretches}
        if len(self.answers) > most:
            self.answers.clear()


@dataclass(frozen=True, slots=True)
class GroupNames:
    """What the lines before the first graph and the ``backward`` lines say about groups."""

    states: Groups
    """The groups of states."""
    owners: Owners
    gradients: Mapping[str, tuple[str, ...]]
    """What each ``backward`` line differentiates by."""


NO_GROUPS = GroupNames({}, {}, {})


# -- reading ---------------------------------------------------------------------------------------


class GraphReading(TextParser):
    """Parses the lines from one ``graph`` to the next, numbered from 0 at its first line.

    `before` lines precede them in the text at the time of parsing; the parser's line numbers include them.
    `prefixes` and `states` are those declared earlier in the text, with the types and lines of the states.
    """

    def __init__(
        self,
        lines: Sequence[str],
        before: int,
        memory: AnalysisMemory,
        prefixes: Prefixes,
        states: tuple[Mapping[str, Type | None], Mapping[str, int]] = ({}, {}),
        groups: GroupNames = NO_GROUPS,
    ) -> None:
        super().__init__(lines, None, before, prefixes)
        self.groups = dict(groups.states)
        self.group_names = groups
        self.state_types, self.state_lines = dict(states[0]), dict(states[1])
        """The types and lines of the states declared in these lines, or before the first graph."""
        self.memory = memory
        self.events: list[Event] = []
        self.blocks: list[Block | None] = []
        """The block open at the start of each line, plus one entry for the end."""
        self.stretches: dict[int, Stretch] = {}
        """Stretches by their first lines."""
        self.first = 0
        self.problems: list[Problem] = []
        self.opened: list[Block] = []
        """All blocks, in the order of their first lines."""
        self.used: dict[Block, set[str]] = {}
        self.entered: StatementEntry | None = None
        self.several: list[StatementEntry] | None = None
        """The statements of a line with several, while it is parsed."""

    @property
    def header(self) -> Block | None:
        """Return the block of the graph; None without one."""
        return self.opened[0] if self.opened and self.opened[0].kind in ("graph", "broken") else None

    def steps(self) -> Generator[None, None, GraphReading]:
        """Parse all lines, a few hundred at a time; nothing is raised."""
        index = 0
        while index < len(self.lines):
            end = min(len(self.lines), index + MOST)
            while index < end:
                stretch = self._stretch(index)
                if stretch is None:
                    self._line(index)
                    index += 1
                else:
                    index += self._take_stretch(stretch, index)
            yield
        self._gather(index)
        self.blocks.append(self.block)
        self.close_unclosed(self.before + index)
        self.graphs.clear()
        self.state_types |= {state.value.name: state.value.type for state in self.states}
        for block in reversed(self.opened):
            if block.parent is not None:
                self.used[block.parent].update(self.used[block] - block.names.keys())
        return self

    # -- stretches -----------------------------------------------------------------------------

    def _stretch(self, index: int) -> Stretch | None:
        """Return the cached stretch at a line."""
        block = self.block
        found = self.memory.stretches.get(self.lines[index])
        if self.grouped or found is None or block is None or block.end or self.comment:
            return None
        same = self.lines[index : index + len(found.lines)] == found.lines
        return found if same and found.fits(block) else None

    def _take_stretch(self, stretch: Stretch, index: int) -> int:
        block = self.block
        assert block is not None
        self._gather(index)
        count = len(stretch.lines)
        stretch.enter(block, self.before + index + 1)
        self.used[block].update(stretch.uses)
        self.events.extend(stretch.events)
        self.blocks.extend([block] * count)
        self.stretches[index] = stretch
        self.first = index + count
        return count

    def _line(self, index: int) -> None:
        """Parse one line, and end the stretch before or with it."""
        text, block = self.lines[index], self.block
        # A name may be that of a group here.
        entry = None if self.grouped else self.memory.entries.get(text) or self._fast_parsed(text)
        flaws, commented = len(self.problems), bool(self.comment)
        self.blocks.append(block)
        if entry is not None and block is not None and not block.end:
            if not self._take_plain(block, entry, self.before + index + 1):
                self._take(block, entry, self.before + index + 1)
            self.events.append(entry)
        else:
            self.events.append(self._event(text, self.before + index + 1))
        steady = _is_steady(self.events[-1], text) and not commented and len(self.problems) == flaws
        if not steady or block is None:
            self._gather(index)
            self.first = index + 1
        elif index + 1 - self.first == MOST:
            self._gather(index + 1)

    def _fast_parsed(self, text: str) -> StatementEntry | None:
        """Parse a line with the fast path of the parser."""
        found = plain_statement(text, self.prefixes)
        if found is None:
            return None
        node, operands, match = found
        name = node.outputs[0].name
        names = Names(defines=[NameSpan(name, match.start(1) - 1, len(match[1]) + 1)])
        start = match.start(4) - 1
        for name, spelled in zip(operands, match[4].split(SEPARATOR), strict=True):
            names.uses.append(NameSpan(name, start, len(spelled) + 1))
            start += len(spelled) + len(SEPARATOR)
        entry = StatementEntry(node, names, NameSpan(node.op, match.start(3), len(node.op)))
        self.memory.entries[text] = entry
        return entry

    def _gather(self, end: int) -> None:
        """Make a stretch of the preceding lines that were parsed one by one."""
        first, self.first = self.first, end
        made = stretch_of(list(self.lines[first:end]), self.events[first:end])
        if made is not None:
            self.memory.stretches[made.lines[0]] = self.stretches[first] = made

    def _take_plain(self, block: Block, entry: StatementEntry, number: int) -> bool:
        """Handle the common case: an op, no comment, names in order; return False for other lines."""
        names = block.names
        if not entry.plain or block.parent is not None or self.comment or block.kind == "broken":
            return False
        for name in entry.uses:
            if name not in names and name not in self.state_lines:
                return False
        for name in entry.defines:
            if name in names or name in self.state_lines:
                return False
        if len(entry.defines) > 1 and len(set(entry.defines)) < len(entry.defines):
            return False
        for name in entry.defines:
            names[name] = number
        block.nodes.append(entry.content)  # type: ignore[arg-type]
        block.lines.append(number)
        self.used[block].update(entry.uses)
        return True

    def _take(self, block: Block, entry: StatementEntry, number: int) -> None:
        """Reuse a cached line."""
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
        self.entered = self.several = None
        around = outer.parent if outer is not None else None
        length = -1 if around is None else len(around.nodes)
        own = 0 if outer is None else len(outer.nodes)
        ended = outer is None or bool(outer.end)
        self.line(text, number)
        if len(self.opened) > count:
            return Opened(self.opened[-1])
        if self.several is not None:
            return SeveralStatements(self.several)
        if self.entered is not None:
            if (
                not self.grouped
                and len(self.problems) == flaws
                or all(p.code != "syntax" for p in self.problems[flaws:])
            ):
                self.memory.entries[text] = self.entered
            return self.entered
        if outer is None:
            return None
        if self.block is around and around is not None and len(around.nodes) > length:
            header = outer.header
            assert header is not None
            return Closed(around.nodes[-1], (outer,) if header.branch is None else (header.branch, outer))
        if self.block is outer and len(outer.nodes) > own:
            return LoopExit(outer.nodes[-1])
        return BlockEnded() if outer.end and not ended and outer.results is not None else None

    # -- callbacks of the parser -----------------------------------------------------------------------

    def report(self, line: int, flaw: Flaw) -> None:
        related: tuple[tuple[Span, str], ...] = ()
        if flaw.related is not None:
            place = Span(flaw.related - 1 - self.before, 0, -1)
            related = ((place, "it is defined here"),)
        self.problems.append(problem_of(flaw, line - 1 - self.before, related))

    def open(self, block: Block, names: Names) -> None:
        super().open(block, names)
        self.opened.append(block)
        self.used[block] = set()

    def open_broken(self, outer: Block | None, text: str, number: int) -> None:
        super().open_broken(outer, text, number)
        if self.block is None or self.too_deep:
            return
        self.opened.append(self.block)
        self.used[self.block] = set()

    def resolve(self, names: Names, number: int) -> None:
        block = self.block
        if block is not None:
            self.used[block].update([mark.name for mark in names.uses])
        super().resolve(names, number)

    def salvage(self, text: str, number: int) -> None:
        """Record the names used by a line that failed."""
        if self.block is not None:
            self.used[self.block].update(m.name for m in mentions(text, self.prefixes) if not m.defines)
        super().salvage(text, number)

    def enter(self, block: Block, node: Node, names: Names, mark: NameSpan, number: int) -> None:
        self.entered = StatementEntry(node, names, mark)
        if self.several is not None:
            self.several.append(self.entered)
        super().enter(block, node, names, mark, number)

    def enter_all(
        self, block: Block, nodes: Sequence[tuple[Node, NameSpan]], names: Names, number: int
    ) -> None:
        self.several = []
        super().enter_all(block, nodes, names, number)

    def gradients(self) -> Mapping[str, tuple[str, ...]]:
        return self.group_names.gradients

    def owners(self) -> Mapping[str, str | None]:
        return self.group_names.owners or super().owners()

    def enter_constant(self, block: Block, constant: Constant, names: Names, number: int) -> None:
        self.entered = StatementEntry(constant, names, None)
        super().enter_constant(block, constant, names, number)


def _is_steady(event: Event, text: str) -> bool:
    """Return True for an op, a constant, a blank line or a ``#`` line."""
    if isinstance(event, StatementEntry):
        return isinstance(event.content, Constant) or event.content.op[0] != "@"
    start = text.strip()[:2]
    return event is None and (not start or (start[0] == "#" and start != "##"))
