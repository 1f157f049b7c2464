"""Parse results of a line, as the language server stores them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from nncdbg.ir.records import Constant, Literal, Node, Type
from nncdbg.textual_repr.blocks import Block
from nncdbg.textual_repr.language_server.document.records import Problem
from nncdbg.textual_repr.statements import Names, NameSpan


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
class Left:
    """A ``break unless`` line."""

    node: Node


Event: TypeAlias = "StatementEntry | Opened | Closed | BlockEnded | Left | None"
