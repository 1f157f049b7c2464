"""Read the past from the undo log, such as the last visit of a statement, without undoing anything.

Between two transfers of control the machine runs one block, statement by statement, so tick and pc
both rise by one from statement to statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.execution.machine import Machine
from nncdbg.engine.execution.undo_log import Finished, FramePopped, IterationEnded, Position, Transfer

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
