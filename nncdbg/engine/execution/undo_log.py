"""The undo log: one record per transfer of control, with the data to undo it.

Straight-line statements add no record, because their results stay in their slots: between two transfers the
machine runs one block, statement by statement, so tick and pc both rise by one from statement to statement.
The past, such as the last visit of a statement, can be read without undoing anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.execution.frame import Frame

if TYPE_CHECKING:
    from nncdbg.engine.execution.machine import Machine

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


Stretch: TypeAlias = "tuple[Code, int, int, int]"
"""(block, first pc, last pc, tick at which the last was about to run): consecutive statements."""


def last_visit(machine: Machine, wanted: Callable[[Code], bool], pc: int) -> int | None:
    """Return the last tick before now at which statement `pc` of a wanted block was about to run.

    None if it has not run within the reach of the undo log.
    """
    for code, first, last, tick in _stretches(machine):
        if wanted(code) and first <= pc <= last and tick - (last - pc) < machine.tick:
            return tick - (last - pc)
    return None


def left_micro_program(machine: Machine) -> bool:
    """Return whether the last statement was the end of a micro program that was stepped into."""
    last = machine.last_transfer
    return isinstance(last, FramePopped) and last.code.formula is not machine.frames[-1].code.formula


def finished_visits(machine: Machine) -> Iterator[tuple[tuple[Position, ...], Finished]]:
    """Yield (calling statements, finished frame or iteration) in the undo log, latest first.

    The calling statements are outermost first, as (block, pc).
    """
    for stack, transfer in _undone(machine):
        if isinstance(transfer, (FramePopped, IterationEnded)):
            yield tuple(stack[:-1]), transfer


def _undone(machine: Machine) -> Iterator[tuple[list[Position], Transfer]]:
    """Yield the positions of the stack before each transfer in the undo log, latest first."""
    stack = [(frame.code, frame.pc) for frame in machine.frames]
    tick = machine.tick
    for transfer in reversed(machine.undo_log):
        transfer.undo_position(stack, stack[-1][1] - (tick - transfer.tick))
        tick = transfer.tick - 1
        yield stack, transfer


def _stretches(machine: Machine) -> Iterator[Stretch]:
    """Yield the executed stretches, latest first."""
    stack = [(frame.code, frame.pc) for frame in machine.frames]
    tick = machine.tick
    for transfer in reversed(machine.undo_log):
        code, pc = stack[-1]
        first = pc - (tick - transfer.tick)
        yield code, first, pc, tick
        transfer.undo_position(stack, first)
        tick = transfer.tick - 1
    code, pc = stack[-1]
    yield code, pc - (tick - machine.floor), pc, tick
