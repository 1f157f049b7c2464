"""Who is to blame where a run in memory that is used again parts from one in which it never is.

The culprit is named by the arena's records; where no lifetime was wrong, it is found by running
again: with one value watched after every statement, or with values that are not freed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.played import Changed, Differs, Moment, Played, Player, digest
from nncdbg.engine.divergence.written import written_slots
from nncdbg.engine.execution.linking import Allocation
from nncdbg.engine.memory.arena import ArenaAllocation
from nncdbg.engine.memory.blocks import Block
from nncdbg.engine.memory.plan_file import Site
from nncdbg.engine.memory.planner import Plan, by_liveness

Start: TypeAlias = Callable[["str | Allocation"], Debugger]
"""The program at its start, with this allocator."""


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
