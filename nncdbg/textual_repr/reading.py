"""Parser state, and recovery after a line that failed.

Names that a failed line seems to define count as defined, and the parser continues inside a block with an
invalid first line. A mistake is therefore not reported again at every line that depends on it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from nncdbg.engine.errors import Excerpt, GraphError
from nncdbg.engine.text.lexemes import BARE, PREFIXED, STRING, Flaw, unquote
from nncdbg.engine.text.prefixes import NO_PREFIXES, Prefixes
from nncdbg.ir.records import BackwardLine, Graph, Path, RunLine, StateLine
from nncdbg.textual_repr.blocks import ENDS, Block
from nncdbg.textual_repr.cursor import Cursor
from nncdbg.textual_repr.repairs import outside_repair
from nncdbg.textual_repr.resolution import Unresolved, WrittenCall, WrittenTrack, explain_all, shown
from nncdbg.textual_repr.statements import Names

DEEPEST = 1000
"""Maximum nesting depth of blocks."""

_LONGEST_HINT = 600


class Reading:
    """The lines, the errors, the complete graphs and the open block."""

    def __init__(
        self,
        lines: Sequence[str],
        file: str | None,
        before: int = 0,
        prefixes: Prefixes = NO_PREFIXES,
    ) -> None:
        self.file = file
        self.lines = lines
        self.before = before
        """Number of lines of the text before these; messages count from the start of the text."""
        self.errors: list[GraphError] = []
        self.block: Block | None = None
        self.comment: list[str] = []
        self.graphs: dict[str, Graph] = {}
        self.broken: set[str] = set()
        self.blocks: list[Block] = []
        self.unresolved: list[Unresolved] = []
        self.statements: dict[Path, tuple[int, ...]] = {}
        self.headers: dict[Path, int] = {}
        self.prefixes = prefixes
        self.state_lines: dict[str, int] = {}
        """The lines of the states, by name."""
        self.graph_lines: dict[str, int] = {}
        self.calls: list[WrittenCall] = []
        self.stores: list[str] = []
        self.notes: list[str] = []
        self.opsets: dict[str, int] = {}
        self.streams: dict[int, str] = {}
        self.states: list[StateLine] = []
        self.runs: list[RunLine] = []
        self.run_lines: list[list[int]] = []
        self.tracks: list[WrittenTrack] = []
        self.backwards: list[BackwardLine] = []
        self.too_deep = False
        """A block of this graph is nested too deeply; the rest of the graph is skipped."""

    def text_of(self, number: int) -> str:
        """Return the line with this 1-based number."""
        return self.lines[number - 1 - self.before]

    def report(self, line: int, flaw: Flaw) -> None:
        excerpt = Excerpt(self.text_of(line), line, flaw.start + 1, max(1, flaw.width), self.file)
        hint = (
            flaw.hint
            if not flaw.hint or len(flaw.hint) <= _LONGEST_HINT
            else flaw.hint[:_LONGEST_HINT] + "..."
        )
        self.errors.append(GraphError(flaw.message, excerpt=excerpt, hint=hint))

    def take_comment(self) -> str:
        """Return the ``##`` lines before this statement."""
        text = "\n".join(self.comment)
        self.comment.clear()
        return text

    def open(self, block: Block, names: Names) -> None:
        if len(block.path) // 2 >= DEEPEST:
            raise self.nested_too_deeply(block.line)
        self.block = block
        self.blocks.append(block)
        self.headers[block.path] = block.line
        self.define(names, block.line)

    def nested_too_deeply(self, line: int) -> Flaw:
        """Return the error of a block at the line; the rest of the graph is skipped."""
        self.too_deep = True
        hint = f"use at most {DEEPEST} levels"
        return Flaw("blocks are nested too deeply", 0, len(self.text_of(line)), hint)

    def inside(self, cursor: Cursor) -> Block:
        """Return the block of the statement at `cursor`."""
        block = self.block
        if block is None:
            raise cursor.whole("a statement outside a graph", outside_repair(cursor.line))
        if block.end and block.kind != "broken":
            raise cursor.whole("this line is never reached", f"line {block.end} ends the block")
        return block

    def nested_path(self, outer: Block) -> Path:
        return (*outer.path, len(outer.nodes), 0)

    def leave_block(self, block: Block, *, broken: bool = False) -> None:
        """Close `block`; at the end of a graph, report its unresolved names."""
        self.block = block.parent
        if block.kind != "broken":
            self.statements[block.path] = block.site_lines()
        if block.parent is not None:
            return
        if broken:
            self.broken.add(block.name)
        elif block.name not in self.graphs:
            self.graphs[block.name] = block.graph()
        for line, flaw in explain_all(self.unresolved, self.blocks):
            self.report(line, flaw)
        self.unresolved.clear()
        self.blocks.clear()

    def close_unclosed(self, number: int) -> None:
        """Report unclosed blocks at the end of the text or the next graph, at line `number` + 1."""
        while self.block is not None:
            block = self.block
            if block.kind != "broken" and not self.too_deep:
                text = self.text_of(block.line)
                hint = f"add }} before line {number + 1}"
                self.report(block.line, Flaw("this block is not closed", len(text.rstrip()) - 1, 1, hint))
            self.leave_block(block, broken=True)
        self.too_deep = False

    def resolve(self, names: Names, number: int) -> None:
        """Record the used names that are not defined so far."""
        block = self.block
        for mark in names.uses:
            if mark.name in self.state_lines:
                continue
            if block is None:
                hint = "a state can use only the states above it"
                flaw = Flaw(f"{shown(mark.name)} is not a state", mark.start, mark.width, hint)
                self.report(number, flaw)
            elif not block.sees(mark.name):
                self.unresolved.append(Unresolved(mark, number, block, len(block.nodes)))

    def define(self, names: Names, number: int) -> None:
        """Define names in the block; report duplicates and names that hide others."""
        block = self.block
        own = self.state_lines if block is None else block.names
        for mark in names.defines:
            line = self.state_lines.get(mark.name)
            if line is None and block is not None:
                line = block.line_of(mark.name)
            if line is not None:
                fault = "is defined twice" if mark.name in own else "hides a value of the same name"
                hint = f"choose another name (it is defined at line {line}); a loop rebinds with next"
                if mark.name in self.state_lines:
                    hint = (
                        f"choose another name (it is a state, line {line}); update gives a state a new value"
                    )
                message = f"{shown(mark.name)} {fault}"
                self.report(
                    number, Flaw(message, mark.start, mark.width, hint, code="redefined", related=line)
                )
            own.setdefault(mark.name, number)

    def salvage(self, text: str, number: int) -> None:
        """Recover from a failed line: keep blocks balanced and define the names that it seems to define."""
        self.comment.clear()
        if self.too_deep:
            return
        opens = text.split("#")[0].rstrip().endswith("{")
        word = Cursor(text).peek_word()
        block = self.block
        if text.lstrip().startswith("}"):
            if block is None:
                return
            self.leave_block(block, broken=True)
            if opens and block.parent is not None:
                self.open_broken(block.parent, text, number)
            else:
                self.take_names(text, number)
        elif word == "graph" or (block is not None and (opens or word in ("if", "while"))):
            self.open_broken(None if word == "graph" else block, text, number)
        elif word in ENDS.values():
            return
        elif word == "state" and (spelled := _value_name.search(text)) is not None:
            self.state_lines.setdefault(self.salvaged_name(spelled[1]), number)
        elif "=" in text:
            self.take_names(text.split("=")[0], number)

    def open_broken(self, outer: Block | None, text: str, number: int) -> None:
        """Open a block with an invalid first line; errors that depend on that line are suppressed."""
        name = _graph_name.search(text)
        if outer is None:
            self.close_unclosed(number - 1)
        graph = "" if name is None else salvaged(name[1])
        path = (graph,) if outer is None else self.nested_path(outer)
        if len(path) // 2 >= DEEPEST:
            self.report(number, self.nested_too_deeply(number))
            return
        self.block = Block("broken", number, path, outer, None, graph)
        self.blocks.append(self.block)
        self.take_names(text, number)

    def take_names(self, text: str, number: int) -> None:
        if self.block is None:
            return
        for spelled in _value_name.findall(text):
            name = self.salvaged_name(spelled)
            if not self.block.sees(name):
                self.block.names[name] = number

    def salvaged_name(self, spelled: str) -> str:
        """Return the name that a line seems to have, with its prefix expanded if it is declared."""
        found = self.prefixes.find(spelled)
        return salvaged(spelled) if found is None else found


_graph_name = re.compile(rf"@({BARE}|{STRING})")
_value_name = re.compile(rf"%({PREFIXED}|{BARE}|{STRING})")


def salvaged(spelled: str) -> str:
    """Return the name or quoted comment without quotes; unchanged if its escapes are invalid."""
    try:
        return unquote(spelled) if spelled.startswith('"') else spelled
    except Flaw:
        return spelled
