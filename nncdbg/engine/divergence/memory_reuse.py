"""Find the cause if a run with reused memory differs from a run without reuse.

The arena's records name the cause of a wrong lifetime.  Otherwise the program runs again: with one
value checked after every statement, or with some values never freed.
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
from nncdbg.engine.memory.blocks import MemoryBlock
from nncdbg.engine.memory.plan_file import Site
from nncdbg.engine.memory.planner import Plan, by_liveness

Start: TypeAlias = Callable[["str | Allocation"], Debugger]
"""Returns a debugger at the start of the program, with the given allocator."""


def who_changed(start: Start, allocator: str | Allocation, changed: Changed) -> Moment | None:
    """Return the statement that changed a value it does not own; None if the change does not recur."""
    debugger = start(allocator)
    machine = debugger.control.machine
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
    """The block of a freed value that a kernel still reads."""

    site: Site
    block: MemoryBlock


def who_is_still_read(
    start: Start, allocator: Callable[[Plan], Allocation], before: Played, differs: Differs
) -> StillRead | None:
    """Return the freed value that a statement depends on without having it as an operand.

    `allocator` makes the arena in which `differs` was seen, for a plan.  The program runs again with
    fewer and fewer values kept from being freed, as long as the difference disappears.  None if keeping
    no single value removes the difference.
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
    """Return the liveness plan without frees of these values."""

    def plan(code: Code, pc: int) -> Sequence[int]:
        return [slot for slot in by_liveness(code, pc) if (code.path, code.names[slot]) not in sites]

    return plan


def _block_of(debugger: Debugger, site: Site, last: int) -> StillRead | None:
    """Return the latest block of a value that was reused for another value up to the tick `last`."""
    allocation, machine = debugger.loaded.allocation, debugger.control.machine
    assert isinstance(allocation, ArenaAllocation)
    path, name = site
    blocks: list[MemoryBlock] = []

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
