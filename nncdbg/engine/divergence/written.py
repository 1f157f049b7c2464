"""What a statement has written in one of two runs, and the key by which the other run's is found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from nncdbg.engine.code import Code, Path
from nncdbg.engine.graph import Node
from nncdbg.engine.machine import Frame
from nncdbg.engine.memory.lifetimes import target_slots

Place: TypeAlias = "tuple[tuple[Path, int], ...]"
"""A statement with the statements that called its block, outermost first, each as (block, pc)."""

Visit: TypeAlias = "tuple[int, ...]"
"""The iterations of the loops on the stack, outermost first."""

Key: TypeAlias = "tuple[Place, Visit]"


def written_slots(frame: Frame) -> range:
    """The slots that the statement before a frame's pc has written."""
    return target_slots(frame.code.targets[frame.pc - 1] if frame.pc else None)


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
class Written:
    """What a statement has just written, by the time of `tick` statements."""

    key: Key
    code: Code
    pc: int
    tick: int
    contents: tuple[Any, ...]
    """One per output of the statement that has a name, on the host; GONE where nothing stands."""

    @property
    def node(self) -> Node:
        return self.code.nodes[self.pc]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(value.name for value in self.node.outputs if value.name)
