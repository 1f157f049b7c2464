"""The user's deviations on a branch: values set, and micro programs stepped into.

A deviation belongs to its branch.  It is in effect from its tick on; before that tick it is
"ahead", and takes effect when the run reaches the tick.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, TypeAlias

from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.execution.events import Ended, Failed
from nncdbg.engine.execution.machine import Machine


@dataclass(frozen=True, slots=True, eq=False)
class Edit:
    """A value set by hand at `tick`: the changed slots, and their contents before and after."""

    tick: int
    name: str
    changes: tuple[tuple[int, int, Any, Any], ...]
    """(depth of the frame, slot, before, after), the edited value first, its dependents after it."""
    at: Statement
    """The statement that was next."""
    late: tuple[Statement, ...] = ()
    """Decisions (`if`, `while`, `break`, host reads) that already used a changed value, outermost first."""
    kept: tuple[str, ...] = ()
    """Values that depend on the edited one but keep the content set by an earlier edit."""


@dataclass(frozen=True, slots=True, eq=False)
class Detour:
    """A micro program that was stepped into: the statement up to `tick` was its beginning."""

    tick: int
    code: Code


Deviation: TypeAlias = "Edit | Detour"
"""The additional data that a replay needs besides the program."""


def edits_of(deviations: Iterable[Deviation]) -> list[Edit]:
    """Return the edits among deviations, in their order."""
    return [each for each in deviations if isinstance(each, Edit)]


def detour_at(deviations: Iterable[Deviation], tick: int) -> Detour | None:
    """Return the detour that the statement after `tick` statements takes; None if it runs by its kernel."""
    detours = (each for each in deviations if isinstance(each, Detour) and each.tick == tick + 1)
    return next(detours, None)


def next_halt(deviations: Iterable[Deviation], tick: int) -> float:
    """Return the tick at which a free run stops for the next deviation ahead; infinity if none."""
    ahead = (
        each.tick if isinstance(each, Edit) else each.tick - 1 for each in deviations if each.tick > tick
    )
    return min(ahead, default=float("inf"))


def parted(these: Sequence[Deviation], those: Sequence[Deviation]) -> int | None:
    """Return the tick of the first deviation that only one of two runs has; None if they are the same."""
    for a, b in zip_longest(these, those):
        if a is not b:
            return min(each.tick for each in (a, b) if each is not None)
    return None


def sets(deviation: Deviation, depth: int, slot: int) -> bool:
    """Return whether a deviation is an edit that changes this slot."""
    return isinstance(deviation, Edit) and any(change[:2] == (depth, slot) for change in deviation.changes)


def apply_edits(machine: Machine, deviations: Iterable[Deviation]) -> list[Edit]:
    """Apply the edits made at exactly this tick, and return them."""
    made = [each for each in edits_of(deviations) if each.tick == machine.tick]
    for edit in made:
        for depth, slot, _, after in edit.changes:
            machine.frames[depth].slots[slot] = after
    return made


def take_back(machine: Machine, edit: Edit, depth: int | None = None) -> None:
    """Restore the contents from before an edit, in the frames below `depth`."""
    frames = machine.frames[:depth]
    for level, slot, before, _ in reversed(edit.changes):
        if level < len(frames):
            frames[level].slots[slot] = before


def delayed(ahead: Iterable[Deviation], machine: Machine, code: Code) -> list[Deviation]:
    """Return the deviations ahead of `machine`, later by the extra ticks of the micro program `code`.

    A clone of the machine runs the micro program to count its ticks.
    """
    ahead = list(ahead)
    if not ahead:
        return ahead
    apart, depth, start = machine.clone(), len(machine.frames), machine.tick
    apart.push_formula(code)
    while len(apart.frames) > depth:
        if isinstance(apart.step(), (Ended, Failed)):
            # The run cannot get past this statement; what is ahead stays ahead.
            break
    more = apart.tick - start - 1
    return [replace(each, tick=each.tick + more) for each in ahead]
