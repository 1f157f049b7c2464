"""A run in an arena against a run in which memory is never reused: where they part, and who is to blame.

Both take each statement in turn, and what it wrote is compared bit for bit (any NaN equals any
other).  The first statement that differs, or that reads memory that is no longer its operand's,
is the victim; the arena's records name the culprit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nncdbg.engine.code import Statement
from nncdbg.engine.divergence.side import Side
from nncdbg.engine.divergence.written import written_slots
from nncdbg.engine.dtypes import COMPLEX, FLOATS, name_of
from nncdbg.engine.errors import RunError
from nncdbg.engine.events import Failed, Outcome
from nncdbg.engine.findings import Finding
from nncdbg.engine.graph import Array, Program
from nncdbg.engine.machine import Frame
from nncdbg.engine.memory.arena import ArenaAllocation
from nncdbg.engine.memory.planner import Plan, by_liveness
from nncdbg.engine.session import Debugger
from nncdbg.engine.values import copied


@dataclass(frozen=True, slots=True)
class Difference:
    """The first statement at which an arena misleads a program.

    `value` is what it wrote otherwise than it should (`expected`, `actual`), None where it wrote
    the same, or nothing, and only its reading is wrong.  `finding` is what the arena's records say.
    """

    statement: Statement
    op: str
    line: int | None
    iteration: int
    value: str | None
    expected: Any
    actual: Any
    detail: str
    finding: Finding | None


def first_difference(
    program: Program,
    inputs: Mapping[str, Any] | None = None,
    *,
    plan: Plan = by_liveness,
    poison: bool = False,
    seed: int = 0,
) -> Difference | None:
    """The first difference between `debug` and an arena that follows `plan`; None if there is none.

    Raises RunError if the program fails without an arena, and what `Debugger` raises.
    """
    return _Comparison(program, inputs, ArenaAllocation(plan, poison=poison), seed).run()


class _Comparison:
    def __init__(
        self, program: Program, inputs: Mapping[str, Any] | None, arena: ArenaAllocation, seed: int
    ) -> None:
        self.arena = arena
        self.sides = [
            Side(Debugger(program, inputs, seed=seed, allocator=memory, statistics=False), title)
            for memory, title in (("debug", "without an arena"), (arena, "in the arena"))
        ]
        self.right, self.tried = (side.debugger for side in self.sides)
        self.findings: list[Finding] = []
        arena.report = self.findings.append

    def run(self) -> Difference | None:
        while not self.right.machine.ended:
            frame = self.tried.machine.frames[-1]
            statement, iteration = Statement(frame.code, frame.pc), frame.iteration
            changed = self._changed_operand(statement)
            expected = self.sides[0].step()
            if isinstance(expected, Failed):
                raise RunError(f"the program fails with any memory: {expected.error}") from expected.error
            found = self._compare(statement, iteration, changed, self.sides[1].step())
            if found is not None:
                return found
        return None

    def _changed_operand(self, statement: Statement) -> str | None:
        """An operand of the next statement that was written right and has changed since."""
        right, tried = self.right.machine.frames[-1], self.tried.machine.frames[-1]
        slots = statement.code.operands[statement.pc]
        return next((statement.code.names[slot] for slot in slots if self._differs(slot, right, tried)), None)

    def _compare(
        self, statement: Statement, iteration: int, changed: str | None, outcome: Outcome | None
    ) -> Difference | None:
        """What the step that both have just taken shows."""
        finding = self.findings[0] if self.findings else None
        right, tried = self.right.machine.frames[-1], self.tried.machine.frames[-1]
        slot, detail = None, ""
        if isinstance(outcome, Failed):
            detail = f"it fails in the arena: {outcome.error}"
        elif _place(right) != _place(tried):
            detail = "it goes another way in the arena"
        else:
            slot = self._differing(right, tried)
        if finding is not None:
            statement, detail = finding.binding, finding.detail
        elif slot is not None:
            detail = _explained(tried.code.names[slot], changed)
        if not detail:
            return None
        value = expected = actual = None
        if slot is not None:
            value = tried.code.names[slot]
            expected, actual = copied(right.slots[slot]), copied(tried.slots[slot])
        code, pc = statement.code, statement.pc
        op = code.nodes[pc].op if pc < len(code.nodes) else ""
        line = self.tried.listing.line(code.path, pc)
        return Difference(statement, op, line, iteration, value, expected, actual, detail, finding)

    def _differing(self, right: Frame, tried: Frame) -> int | None:
        """The first slot written by the last step that differs, if it stands."""
        written = written_slots(tried)
        if tried.is_loop and tried.pc == 0:
            written = range(2, 1 + len(tried.code.graph.inputs))
        return next((slot for slot in written if self._differs(slot, right, tried)), None)

    def _differs(self, slot: int, right: Frame, tried: Frame) -> bool:
        stands = self.arena.standing(tried.slots[slot]) is None
        return stands and not same_bits(right.slots[slot], tried.slots[slot])


def _explained(value: str, changed: str | None) -> str:
    """Why a value differs although no lifetime was wrong."""
    if changed is not None:
        return f"%{value} differs: its operand %{changed} changed after it was written"
    return f"%{value} differs, but no operand does: it depends on memory that it does not own"


def _place(frame: Frame) -> tuple[object, ...]:
    return frame.code.path, frame.pc, frame.iteration


def same_bits(one: Any, other: Any) -> bool:
    """Whether two contents of slots are the same to the bit, any NaN being the same as any other."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same_bits, one, other))
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return one is other
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.hasobject:
        return bool(np.array_equal(one, other))
    unequal = (_rows(one) != _rows(other)).any(axis=1)
    if unequal.any() and name_of(one.dtype) in (*FLOATS, *COMPLEX):
        unequal &= ~(np.isnan(one) & np.isnan(other)).reshape(-1)
    return not unequal.any()


def _rows(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, array.itemsize)
