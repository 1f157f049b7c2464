"""The tree of an expression, and errors that underline a part of its text.

Every node stores its position in the text, so evaluation errors underline the text as syntax errors do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from nncdbg.errors import Excerpt, ExpressionError

MAX_DEPTH = 100
"""Maximum depth of a tree, which bounds recursion; deeper trees are refused."""

_EXCERPT_WIDTH = 120


@dataclass(frozen=True, slots=True)
class ExpressionNode:
    """A part of an expression, read from `text[start:end]`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class LiteralExpression(ExpressionNode):
    """A number, a string, true, false or None; `...` inside an index."""

    data: Any


@dataclass(frozen=True, slots=True)
class Name(ExpressionNode):
    """A value's name, without sigil; `plain` is True if it was written without one."""

    name: str
    plain: bool


@dataclass(frozen=True, slots=True)
class VariableExpression(ExpressionNode):
    """`$iter`, `$out1` or a convenience name; `name` is without the `$`."""

    name: str


@dataclass(frozen=True, slots=True)
class Sequence(ExpressionNode):
    """`[a, b]`, which makes a tensor, or `(a, b)`, which is a tuple (axes, shapes, indices)."""

    items: tuple[ExpressionNode, ...]
    is_list: bool


@dataclass(frozen=True, slots=True)
class Slice(ExpressionNode):
    """`first:stop:step` inside an index."""

    first: ExpressionNode | None
    stop: ExpressionNode | None
    step: ExpressionNode | None


@dataclass(frozen=True, slots=True)
class Unary(ExpressionNode):
    """`-a`, `+a`, `~a`, `not a`."""

    symbol: str
    operand: ExpressionNode


@dataclass(frozen=True, slots=True)
class Binary(ExpressionNode):
    """Arithmetic and bitwise operators."""

    symbol: str
    left: ExpressionNode
    right: ExpressionNode


@dataclass(frozen=True, slots=True)
class Compare(ExpressionNode):
    """`a < b <= c`: one more operand than symbols."""

    symbols: tuple[str, ...]
    operands: tuple[ExpressionNode, ...]


@dataclass(frozen=True, slots=True)
class Boolean(ExpressionNode):
    """`a and b`, `a or b`: scalars only, with short-circuit evaluation."""

    symbol: str
    left: ExpressionNode
    right: ExpressionNode


@dataclass(frozen=True, slots=True)
class Conditional(ExpressionNode):
    """`then if condition else otherwise`."""

    then: ExpressionNode
    condition: ExpressionNode
    otherwise: ExpressionNode


@dataclass(frozen=True, slots=True)
class CallExpression(ExpressionNode):
    """A call: `arguments` in source order, and their `parameters`."""

    function: str
    parameters: tuple[str, ...]
    arguments: tuple[ExpressionNode, ...]


@dataclass(frozen=True, slots=True)
class Field(ExpressionNode):
    """`stats(%h).nan`."""

    operand: ExpressionNode
    name: str


@dataclass(frozen=True, slots=True)
class IndexExpression(ExpressionNode):
    """`operand[items]`."""

    operand: ExpressionNode
    items: Sequence


def children(node: ExpressionNode) -> Iterator[ExpressionNode]:
    """Yield the nodes directly below `node`."""
    for field in fields(node):
        held = getattr(node, field.name)
        if isinstance(held, ExpressionNode):
            yield held
        elif isinstance(held, tuple):
            yield from (item for item in held if isinstance(item, ExpressionNode))


def walk(root: ExpressionNode) -> Iterator[tuple[ExpressionNode, int]]:
    """Yield every node with its depth (1 for the root), without recursion."""
    pending = [(root, 1)]
    while pending:
        node, depth = pending.pop()
        yield node, depth
        pending.extend((child, depth + 1) for child in children(node))


def fault(text: str, start: int, end: int, message: str, **extra: Any) -> ExpressionError:
    """Return an ExpressionError that underlines `text[start:end]`; a long line is cut around it."""
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", line_start)
    line_end = len(text) if line_end < 0 else line_end
    first = (
        max(line_start, start - _EXCERPT_WIDTH // 2) if line_end - line_start > _EXCERPT_WIDTH else line_start
    )
    shown = text[first : min(line_end, first + _EXCERPT_WIDTH)]
    width = max(1, min(end, line_end) - start)
    line = text.count("\n", 0, start) + 1
    excerpt = Excerpt(shown, line, start - first + 1, width, file="<expression>")
    return ExpressionError(message, excerpt=excerpt, **extra)
