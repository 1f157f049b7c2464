"""What the journal tells of the past, such as when a statement was last about to run; nothing is undone.

Between two transfers of control the machine goes through one block, statement by statement, so
from a transfer to the next both tick and pc rise by one each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.execution.machine import Machine

Stretch: TypeAlias = "tuple[Code, int, int, int]"
"""(block, first pc, last pc, tick at which the last was about to run): statements run in a row."""


def last_visit(machine: Machine, wanted: Callable[[Code], bool], pc: int) -> int | None:
    """The last tick before now at which statement `pc` of a wanted block was about to run.

    None if it has not run as far back as the journal reaches.
    """
    for code, first, last, tick in _stretches(machine):
        if wanted(code) and first <= pc <= last and tick - (last - pc) < machine.tick:
            return tick - (last - pc)
    return None


def left_micro_program(machine: Machine) -> bool:
    """Whether the statement just run was the end of a micro program that was stepped into."""
    if not machine.journal:
        return False
    tick, kind, dropped = machine.journal[-1]
    if tick != machine.tick or kind != "pop":
        return False
    inside: bool = dropped.code.formula is not machine.frames[-1].code.formula
    return inside


def _stretches(machine: Machine) -> Iterator[Stretch]:
    """What has run, the latest first."""
    stack = [(frame.code, frame.pc) for frame in machine.frames]
    tick = machine.tick
    for after, kind, dropped in reversed(machine.journal):
        code, pc = stack[-1]
        first = pc - (tick - after)
        yield code, first, pc, tick
        _undo(stack, first, kind, dropped)
        tick = after - 1
    code, pc = stack[-1]
    yield code, pc - (tick - machine.floor), pc, tick


def _undo(stack: list[tuple[Code, int]], pc: int, kind: str, dropped: Any) -> None:
    """Take one transfer of control back, after which the innermost block stood at `pc`."""
    code = stack.pop()[0]
    if kind == "pop":
        stack += [(code, pc - 1), (dropped.code, dropped.pc)]
    elif kind == "next":
        stack.append((code, len(code.nodes)))
    elif kind == "end":
        stack.append((code, pc))
