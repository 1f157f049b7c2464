"""Operands and results of a statement in one of two runs, and the key that finds it in the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from nncdbg.comparison.report import Key, Place, ValueSite, Visit
from nncdbg.engine.compilation.code import Code
from nncdbg.engine.execution.frame import Frame
from nncdbg.ir.records import Node, type_of

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger

__all__ = [
    "GONE",
    "Fixed",
    "Given",
    "Key",
    "Place",
    "WrittenResult",
    "Source",
    "Visit",
    "Written",
    "key_of",
    "site_of",
    "written_slots",
]


def written_slots(frame: Frame) -> range:
    """Return the slots written by the statement before a frame's pc."""
    return frame.code.result_slots(frame.pc - 1) if frame.pc else range(0)


def key_of(frames: list[Frame], pc: int) -> Key:
    """Return the key (statement and visit) of `pc` in the innermost of `frames` (outermost first)."""
    *outer, inner = frames
    place = (*((frame.code.path, frame.pc) for frame in outer), (inner.code.path, pc))
    return place, tuple(frame.iteration for frame in frames if frame.is_loop)


class _Gone:
    """The content of a slot that was freed at once because no statement reads it."""

    def __repr__(self) -> str:
        return "<gone>"


GONE = _Gone()


@dataclass(frozen=True, slots=True)
class WrittenResult:
    """Output `index`, among the named ones, of the statement and visit `key`."""

    key: Key
    index: int


@dataclass(frozen=True, slots=True)
class Given:
    """An input of the program."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """A constant."""

    content: Any


Source: TypeAlias = "WrittenResult | Given | Fixed | None"
"""The origin of an operand; None if it is omitted or its origin is unknown."""


@dataclass(frozen=True, slots=True)
class Written:
    """A statement that has just written its results, after `tick` statements."""

    key: Key
    code: Code
    pc: int
    tick: int
    contents: tuple[Any, ...]
    """One content per named output of the statement, on the host; GONE if it is already freed."""
    operands: tuple[Any, ...] | None = None
    """The operands of its kernel, as the machine holds them; None for control flow and calls."""
    sources: tuple[Source, ...] = ()
    """The origins of the operands, if recorded."""

    @property
    def node(self) -> Node:
        return self.code.nodes[self.pc]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(value.name for value in self.node.outputs if value.name)


def site_of(debugger: Debugger, written: Written, index: int, key: Key | None = None) -> ValueSite:
    """Return the site of a result; `key` is the statement's own key if a comparison uses another."""
    node, location = written.node, written.node.location
    content = written.contents[index] if written.contents else None
    return ValueSite(
        written.names[index] if written.names else "",
        node.op,
        str(type_of(content) or type(content).__name__),
        debugger.loaded.line(written.code, written.pc),
        str(written.code.path[0]),
        written.key[1],
        location.name if location is not None and location.name else "",
        written.tick,
        key or written.key,
        location.place if location is not None else "",
    )
