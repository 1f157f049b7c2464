"""A block that is being parsed: its statements so far and the names in scope."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from nncdbg.ir.records import Constant, Graph, Location, Node, Operand, Path, Placement, Value
from nncdbg.text.lexemes import name_text

ENDS = {"graph": "return", "then": "yield", "else": "yield", "body": "next"}
"""Maps the kind of a block to the keyword of its last line."""

CALLED = {"graph": "a graph", "then": "a branch", "else": "a branch", "body": "a loop's body"}


@dataclass(slots=True)
class BlockHeader:
    """The first line of an ``if`` or ``while``: the parts of its Node needed when the blocks close."""

    op: str
    inputs: tuple[Operand, ...]
    line: int
    location: Location | None
    comment: str
    branch: Block | None = None
    """The first branch, after it has closed."""
    placement: Placement | None = None


@dataclass(slots=True, eq=False)
class Block:
    """A block of statements.

    `kind` is graph, then, else, body, or broken (the line that opened it does not parse).

    `results` are the values of its last line, and `end` is the number of that line (0 while the block is
    open). `results` is None if that line is missing or does not parse. `before` and `after` are the margins
    of its first and last line.
    """

    kind: str
    line: int
    path: Path = ()
    parent: Block | None = None
    header: BlockHeader | None = None
    name: str = ""
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    comment: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    constants: list[Constant] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    results: tuple[Value, ...] | None = None
    end: int = 0
    before: Placement | None = None
    after: Placement | None = None
    astray: bool = False
    """A wrong keyword ended the block, or seemed to; the error has been reported."""

    def outwards(self) -> Iterator[Block]:
        """Yield this block, then the enclosing blocks from the inside out."""
        block: Block | None = self
        while block is not None:
            yield block
            block = block.parent

    def sees(self, name: str) -> bool:
        """Return True if `name` is in scope, or if an enclosing block is broken and may define it."""
        return any(name in block.names or block.kind == "broken" for block in self.outwards())

    def line_of(self, name: str) -> int | None:
        """Return the line that defines the visible `name`."""
        return next((block.names[name] for block in self.outwards() if name in block.names), None)

    def graph(self) -> Graph:
        """Return the block as a graph."""
        outputs = self.outputs if self.kind == "graph" else self.results or ()
        comment = "\n".join(self.comment)
        return Graph(
            self.name,
            self.inputs,
            outputs,
            tuple(self.nodes),
            tuple(self.constants),
            comment,
            self.before,
            self.after,
        )

    def end_line(self) -> str:
        """Return a last line of this block, with the values that it needs."""
        names = [f"%{name_text(value.name)}" for value in self.outputs]
        if self.kind == "body":
            names = [f"%{name_text(value.name)} = %{name_text(value.name)}" for value in self.inputs[1:]]
        elif self.header is not None and self.header.branch is not None:
            names = [f"%{name_text(value.name)}" for value in self.header.branch.results or ()]
        return f"{ENDS[self.kind]} {', '.join(names)}".rstrip()

    def site_lines(self) -> tuple[int, ...]:
        """Return the lines of the statements and of the last line."""
        return (*self.lines, self.end)
