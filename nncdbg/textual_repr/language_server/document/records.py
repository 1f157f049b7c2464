"""The records of the document model.  Lines and columns are 0-based, columns count code points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from nncdbg.ir.records import Type
from nncdbg.textual_repr.blocks import Block


@dataclass(frozen=True, slots=True)
class Span:
    """The characters `start` to `end` (exclusive) of a line."""

    line: int
    start: int
    end: int

    def holds(self, column: int) -> bool:
        """Return True if a cursor at `column` touches the span, its end included."""
        return self.start <= column <= self.end


class Token(NamedTuple):
    """A token of one line; `kind` is its grammatical category, as far as the line alone determines it.

    `name` is the name without quotes and sigil, for a value, graph, label, op, attribute or string.
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
    """A value name in a line.

    `scope` is the block of the name: the block around the line (``here``), the block that the line opens
    (``inner``), or the block that it closes (``closed``; ``here`` is then the block around that one).
    """

    name: str
    start: int
    end: int
    defines: bool
    scope: Literal["here", "inner", "closed"]


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A diagnostic: `code` is a word such as ``undefined``; `related` are other spans with messages.

    `unknown` is an unknown op; for the first ones in a text, the hint is the nearest name.
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
    """The definition of a value at `span`, in the scope of `block`.

    `role` is an input of a graph, a constant, a result of a statement (an op, a call, an ``if`` or a
    ``while``), a loop-carried value, or a loop counter. `written` is the type in the text, `type` the
    inferred type.
    """

    name: str
    block: Block
    span: Span
    role: Role
    written: Type | None
    type: Type | None
