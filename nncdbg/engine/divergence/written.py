"""What a statement has read and written in one of two runs, and the key that finds it in the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.divergence.report import Key, Place, ValueSite, Visit
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.graph import Node
from nncdbg.engine.values.values import type_of

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger

__all__ = [
    "GONE",
    "Fixed",
    "Given",
    "Key",
    "Place",
    "Result",
    "Source",
    "Visit",
    "Written",
    "key_of",
    "site_of",
    "written_slots",
]


def written_slots(frame: Frame) -> range:
    """The slots that the statement before a frame's pc has written."""
    return frame.code.result_slots(frame.pc - 1) if frame.pc else range(0)


def key_of(frames: list[Frame], pc: int) -> Key:
    """Which statement and visit `pc` of the innermost of `frames` (outermost first) is."""
    *outer, inner = frames
    place = (*((frame.code.path, frame.pc) for frame in outer), (inner.code.path, pc))
    return place, tuple(frame.iteration for frame in frames if frame.is_loop)


class _Gone:
    """The content of a slot whose memory was free again at once, as nobody reads it."""

    def __repr__(self) -> str:
        return "<gone>"


GONE = _Gone()


@dataclass(frozen=True, slots=True)
class Result:
    """Output number `index` of the statement and visit `key`, among those that have a name."""

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


Source: TypeAlias = "Result | Given | Fixed | None"
"""Where an operand comes from; None for one that is not given, or of unknown origin."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a statement has just written, after `tick` statements."""

    key: Key
    code: Code
    pc: int
    tick: int
    contents: tuple[Any, ...]
    """One per output of the statement that has a name, on the host; GONE where its memory is free again."""
    operands: tuple[Any, ...] | None = None
    """What its kernel was given, as the machine holds it; None for control flow and calls."""
    sources: tuple[Source, ...] = ()
    """Where the operands come from, if that is recorded."""

    @property
    def node(self) -> Node:
        return self.code.nodes[self.pc]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(value.name for value in self.node.outputs if value.name)


def site_of(debugger: Debugger, written: Written, index: int, key: Key | None = None) -> ValueSite:
    """Where a result was written; `key` is the statement's own, if a comparison uses another."""
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
    )
