"""The kinds of statements, as their `op` says: an op, a call of a graph, or a part of the control flow."""

from __future__ import annotations

from typing import ClassVar


class Kind:
    """The kind of a statement, compared by identity.  `op` is that of such statements, or how it starts.

    It is no Enum, whose members take ten times as long to read in Python 3.11.
    """

    __slots__ = ("op",)

    OP: ClassVar[Kind]
    CALL: ClassVar[Kind]
    IF: ClassVar[Kind]
    WHILE: ClassVar[Kind]
    BREAK: ClassVar[Kind]
    UPDATE: ClassVar[Kind]

    def __init__(self, op: str) -> None:
        self.op = op

    def __repr__(self) -> str:
        return f"<Kind {self.op!r}>"


OP, CALL = Kind.OP, Kind.CALL = Kind(""), Kind("@")
Kind.IF, Kind.WHILE, Kind.BREAK, Kind.UPDATE = map(Kind, ("if", "while", "break", "update"))

_OTHERS = {kind.op: kind for kind in (Kind.IF, Kind.WHILE, Kind.BREAK, Kind.UPDATE)}

CONTROL = (Kind.IF, Kind.WHILE, Kind.BREAK)
"""The kinds that decide which statement of a frame is executed next."""

CONTROL_OPS = frozenset(kind.op for kind in CONTROL)


def kind_of(op: str) -> Kind:
    """Return the kind of the statements with this `op`."""
    return _OTHERS.get(op) or (CALL if op[:1] == "@" else OP)


def called_graph(op: str) -> str | None:
    """Return the graph that statements with this `op` call; None for other kinds."""
    return op[1:] if op[:1] == "@" else None


def is_transfer(op: str) -> bool:
    """Return whether the machine executes the statements with this `op` itself: control flow, and calls."""
    return op in CONTROL_OPS or op[:1] == "@"
