"""The records of the document model.  Lines and columns are 0-based, columns count code points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from nncdbg.engine.graph import Type
from nncdbg.textual_repr.blocks import Block


@dataclass(frozen=True, slots=True)
class Span:
    """The characters `start` to `end` (exclusive) of a line."""

    line: int
    start: int
    end: int

    def holds(self, column: int) -> bool:
        """True if a cursor at `column` touches it, its end included."""
        return self.start <= column <= self.end


class Token(NamedTuple):
    """A piece of one line; `kind` says what it is in the grammar, as far as the line alone tells.

    `name` is what a value, a graph, a label, an op, an attribute or a string spells: no quotes, no sigil.
    """

    kind: Kind
    start: int
    end: int
    name: str = ""


Kind = Literal[
    "comment",
    "value",
    "graph",
    "label",
    "type",
    "string",
    "number",
    "keyword",
    "op",
    "attribute",
    "operator",
    "word",
]


class Mention(NamedTuple):
    """A value's name in a line.

    `scope` says whose names it belongs to: those of the block around the line (``here``), of the block that
    the line opens (``inner``), or of the one that it closes (``closed``; ``here`` is then what is around it).
    """

    name: str
    start: int
    end: int
    defines: bool
    scope: Literal["here", "inner", "closed"]


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A diagnostic.  `code` is a word such as ``undefined``; `related` are other places, each with words.

    `unknown` is an op that nobody knows: of the first ones in a text the hint is the nearest name.
    """

    span: Span
    message: str
    code: str
    severity: Severity = "error"
    hint: str | None = None
    related: tuple[tuple[Span, str], ...] = ()
    unknown: str | None = None


Severity = Literal["error", "warning", "information", "hint"]

Role = Literal["input", "constant", "result", "carried", "counter"]


@dataclass(frozen=True, slots=True)
class Definition:
    """Where a value is defined: in `block`, whose names it belongs to, at `span`.

    `role` is how: an input of a graph, a constant, a result of a statement (an op, a call, an ``if`` or a
    ``while``), a value that a loop carries, or its counter.  `written` is the type in the text, `type` what
    is known of it.
    """

    name: str
    block: Block
    span: Span
    role: Role
    written: Type | None
    type: Type | None
