"""The undo log: one record per transfer of control, with the data to undo it.

Straight-line statements add no record, because their results stay in their slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.execution.frame import Frame

Position: TypeAlias = "tuple[Code, int]"
"""(block, pc of its next statement)."""


@dataclass(slots=True, eq=False)
class FramePushed:
    """A call, a branch, a loop or a micro program began a frame."""

    tick: int
    """The number of executed statements including this transfer, as in every record."""

    def undo(self, frames: list[Frame]) -> None:
        """Restore the stack as it was before this transfer."""
        frames.pop()

    def undo_position(self, stack: list[Position], pc: int) -> None:
        """Restore the positions of a stack without values; `pc` is that of the innermost block after it."""
        stack.pop()

    def needed(self) -> tuple[Sequence[Any], Sequence[int]]:
        """Return (slots, indices) that must not be evicted, so that execution can continue after an undo."""
        return (), ()

    def values(self) -> Iterable[Any]:
        """Return the values that this record holds."""
        return ()

    def copy(self) -> FramePushed:
        """Return a copy that shares no state changed by an undo."""
        return self


@dataclass(slots=True, eq=False)
class FramePopped:
    """A frame returned; its last values stay in `frame`."""

    tick: int
    frame: Frame

    @property
    def code(self) -> Code:
        return self.frame.code

    @property
    def slots(self) -> list[Any]:
        return self.frame.slots

    def undo(self, frames: list[Frame]) -> None:
        frames[-1].pc -= 1
        frames.append(self.frame)

    def undo_position(self, stack: list[Position], pc: int) -> None:
        stack[-1:] = [(stack[-1][0], pc - 1), (self.frame.code, self.frame.pc)]

    def needed(self) -> tuple[Sequence[Any], Sequence[int]]:
        return self.frame.slots, self.frame.code.operands[self.frame.pc]

    def values(self) -> Iterable[Any]:
        return self.frame.values()

    def copy(self) -> FramePopped:
        return replace(self, frame=self.frame.clone())


@dataclass(slots=True, eq=False)
class IterationEnded:
    """A loop began its next iteration; `slots` are the values of the one that ended."""

    tick: int
    code: Code
    slots: list[Any]

    def undo(self, frames: list[Frame]) -> None:
        frame = frames[-1]
        frame.slots, frame.iteration, frame.pc = self.slots, frame.iteration - 1, len(self.code.nodes)
        for items in frame.collected:
            items.pop()

    def undo_position(self, stack: list[Position], pc: int) -> None:
        stack[-1] = self.code, len(self.code.nodes)

    def needed(self) -> tuple[Sequence[Any], Sequence[int]]:
        return self.slots, self.code.operands[-1]

    def values(self) -> Iterable[Any]:
        return self.slots

    def copy(self) -> IterationEnded:
        return replace(self, slots=self.slots.copy())


@dataclass(slots=True, eq=False)
class ProgramEnded:
    """The entry graph returned."""

    tick: int

    def undo(self, frames: list[Frame]) -> None:
        """Do nothing: the frame of the entry graph stays on the stack."""

    def undo_position(self, stack: list[Position], pc: int) -> None:
        stack[-1] = stack[-1][0], pc

    def needed(self) -> tuple[Sequence[Any], Sequence[int]]:
        return (), ()

    def values(self) -> Iterable[Any]:
        return ()

    def copy(self) -> ProgramEnded:
        return self


Transfer: TypeAlias = "FramePushed | FramePopped | IterationEnded | ProgramEnded"
Finished: TypeAlias = "FramePopped | IterationEnded"
"""A finished visit of a block: `code` and its last `slots`."""
