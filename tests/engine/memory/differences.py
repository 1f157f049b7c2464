"""The first statement at which a run in an arena differs from a run without memory reuse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nncdbg.engine.compilation.code import Statement
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.digest_run import Played, Player
from nncdbg.engine.execution.findings import Finding
from nncdbg.engine.execution.linking import Allocation
from nncdbg.engine.memory.arena import ArenaAllocation
from nncdbg.engine.memory.reusing import Plan, by_liveness
from nncdbg.engine.values.values import copied
from nncdbg.errors import RunError
from nncdbg.ir.records import Program


@dataclass(frozen=True, slots=True)
class Difference:
    """The first statement that reads or writes wrong data because of an arena.

    `value` is the name of a wrong result (`expected`, `actual`), None if only an operand is wrong.
    `finding` is the finding from the arena's own records, if any.
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
    """Return the first difference between `debug` and an arena with this plan, or None.

    Raises RunError if the program fails without an arena, and the errors of `Debugger`.
    """

    def start(allocator: str | Allocation) -> Debugger:
        return Debugger(program, inputs, seed=seed, allocator=allocator, statistics=False)

    reference, in_arena = start("debug"), start(ArenaAllocation(plan, poison=poison))
    expected = Player(reference).run()
    if expected.failed is not None:
        error = expected.failed[1]
        raise RunError(f"the program fails with any memory: {error}") from error
    played = Player(in_arena, expected).run()
    return _first(played, reference, in_arena)


def _first(played: Played, reference: Debugger, in_arena: Debugger) -> Difference | None:
    differs, changed = played.differs, played.changed
    ticks = [each.tick for each in (differs and differs.moment, changed and changed.reader) if each]
    finding = None
    if played.findings and all(played.findings[0][0].tick <= tick for tick in ticks):
        moment, finding = played.findings[0]
        statement, detail = finding.binding, finding.detail
    elif differs is not None and (changed is None or differs.moment.tick <= changed.reader.tick):
        moment, statement = differs.moment, differs.moment.statement
        unexplained = (
            f"%{differs.name} differs, but no operand does: it depends on memory that it does not own"
        )
        detail = f"{differs.detail} in the arena" if differs.detail else unexplained
        if changed is not None and changed.reader.tick == moment.tick:
            detail = f"%{differs.name} differs: its operand %{changed.name} changed after it was written"
    elif changed is not None:
        moment, statement = changed.reader, changed.reader.statement
        detail = f"its operand %{changed.name} changed after it was written"
    else:
        return None
    code, pc = statement.code, statement.pc
    op = code.nodes[pc].op if pc < len(code.nodes) else ""
    value = expected_value = actual_value = None
    if differs is not None and differs.slot is not None and differs.moment.tick == moment.tick:
        value, actual_value = differs.name, differs.actual
        reference.go_to(moment.tick + 1)
        expected_value = copied(reference.control.machine.frames[-1].slots[differs.slot])
    iteration = moment.iteration[-1] if moment.iteration else 0
    return Difference(
        statement,
        op,
        in_arena.loaded.line(code, pc),
        iteration,
        value,
        expected_value,
        actual_value,
        detail,
        finding,
    )
