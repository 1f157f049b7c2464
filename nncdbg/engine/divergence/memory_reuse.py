"""A run in memory that is used again against one in which it never is: where they part, and who is to blame.

The first statement that differs, or that reads memory that is no longer its operand's, is the
victim.  The culprit is named by the arena's records; where no lifetime was wrong, it is found by
running again: with one value watched after every statement, or with values that are not freed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from nncdbg.engine.code import Code, Statement
from nncdbg.engine.divergence.played import Changed, Differs, Moment, Played, Player, digest
from nncdbg.engine.divergence.written import written_slots
from nncdbg.engine.errors import RunError
from nncdbg.engine.findings import Finding
from nncdbg.engine.graph import Program
from nncdbg.engine.linking import Allocation
from nncdbg.engine.memory.arena import ArenaAllocation
from nncdbg.engine.memory.blocks import Block
from nncdbg.engine.memory.plan_file import Site
from nncdbg.engine.memory.planner import Plan, by_liveness
from nncdbg.engine.session import Debugger
from nncdbg.engine.values import copied

Start: TypeAlias = Callable[["str | Allocation"], Debugger]
"""The program at its start, with this allocator."""


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

    def start(allocator: str | Allocation) -> Debugger:
        return Debugger(program, inputs, seed=seed, allocator=allocator, statistics=False)

    right, tried = start("debug"), start(ArenaAllocation(plan, poison=poison))
    expected = Player(right).run()
    if expected.failed is not None:
        error = expected.failed[1]
        raise RunError(f"the program fails with any memory: {error}") from error
    played = Player(tried, expected).run()
    return _first(played, right, tried)


def _first(played: Played, right: Debugger, tried: Debugger) -> Difference | None:
    differs, changed = played.differs, played.changed
    ticks = [each.tick for each in (differs and differs.moment, changed and changed.reader) if each]
    finding = None
    if played.findings and all(played.findings[0][0].tick <= tick for tick in ticks):
        moment, finding = played.findings[0]
        statement, detail = finding.binding, finding.detail
    elif differs is not None and (changed is None or differs.moment.tick <= changed.reader.tick):
        moment, statement = differs.moment, differs.moment.statement
        words = f"%{differs.name} differs, but no operand does: it depends on memory that it does not own"
        detail = f"{differs.detail} in the arena" if differs.detail else words
        if changed is not None and changed.reader.tick == moment.tick:
            detail = f"%{differs.name} differs: its operand %{changed.name} changed after it was written"
    elif changed is not None:
        moment, statement = changed.reader, changed.reader.statement
        detail = f"its operand %{changed.name} changed after it was written"
    else:
        return None
    code, pc = statement.code, statement.pc
    op = code.nodes[pc].op if pc < len(code.nodes) else ""
    value = want = got = None
    if differs is not None and differs.slot is not None and differs.moment.tick == moment.tick:
        value, got = differs.name, differs.actual
        right.go_to(moment.tick + 1)
        want = copied(right.machine.frames[-1].slots[differs.slot])
    iteration = moment.iteration[-1] if moment.iteration else 0
    return Difference(statement, op, tried.line_in(code, pc), iteration, value, want, got, detail, finding)


# -- who it was, where no lifetime was wrong -------------------------------------------------------------


def who_changed(start: Start, allocator: str | Allocation, changed: Changed) -> Moment | None:
    """The statement during which a value changed that it does not own; None if it cannot be seen again."""
    debugger = start(allocator)
    machine = debugger.machine
    content: Any = None
    number = 0
    culprit: list[Moment] = []

    def take() -> None:
        nonlocal content, number
        content = machine.frames[-1].slots[changed.slot]
        number = digest(content)

    def look(moment: Moment) -> bool:
        if content is not None and digest(content) != number:
            culprit.append(moment)
        elif machine.tick == changed.written:
            take()
        return bool(culprit) or machine.tick > changed.reader.tick

    if changed.written == 0:
        take()
    Player(debugger, integrity=False, each=look).run()
    return culprit[0] if culprit else None


@dataclass(frozen=True, slots=True, eq=False)
class StillRead:
    """The block of a value that is freed, and from which a kernel takes what it gives."""

    site: Site
    block: Block


def who_is_still_read(
    start: Start, allocator: Callable[[Plan], Allocation], before: Played, differs: Differs
) -> StillRead | None:
    """The value whose freed memory a statement depends on, though it is no operand of it.

    `allocator` makes the arena in which `differs` was seen, for a plan.  It is run again with
    ever fewer values that are not freed, as long as that makes the difference go away.  None if no single
    value does.
    """

    def healed(spared: Collection[Site]) -> bool:
        played = Player(start(allocator(_sparing(spared))), before, integrity=False).run()
        return played.differs is None or played.differs.moment.tick > differs.moment.tick

    suspects: Sequence[Site] = list(before.sizes)
    if not healed(frozenset(suspects)):
        return None
    while len(suspects) > 1:
        middle = len(suspects) // 2
        halves = suspects[:middle], suspects[middle:]
        found = next((half for half in halves if healed(frozenset(half))), None)
        if found is None:
            return None
        suspects = found
    return _block_of(start(allocator(by_liveness)), suspects[0], differs.moment.tick) if suspects else None


def _sparing(sites: Collection[Site]) -> Plan:
    """Liveness, but these values are never freed."""

    def plan(code: Code, pc: int) -> Sequence[int]:
        return [slot for slot in by_liveness(code, pc) if (code.path, code.names[slot]) not in sites]

    return plan


def _block_of(debugger: Debugger, site: Site, last: int) -> StillRead | None:
    """The latest block of a value that was given to somebody else up to the tick `last`."""
    allocation, machine = debugger.allocation, debugger.machine
    assert isinstance(allocation, ArenaAllocation)
    path, name = site
    blocks: list[Block] = []

    def look(moment: Moment) -> bool:
        frame = machine.frames[-1]
        for slot in written_slots(frame) if frame.code.path == path else ():
            block = allocation.block_of(frame.slots[slot])
            if block is not None and frame.code.names[slot] == name:
                blocks.append(block)
        return machine.tick > last

    Player(debugger, integrity=False, each=look).run()
    lost = [block for block in blocks if block.freed is not None]
    lost.sort(key=lambda block: block.successor is not None)
    return StillRead(site, lost[-1]) if lost else None
