"""Run a program statement by statement, with a short digest of every value it writes.

A second run with another allocator is compared with the digests of the first; all NaNs are equal.
Every run also verifies that a value is unchanged between its write and each read.

If a run with reused memory differs from a run without reuse, the cause is found here.  The arena's records
name the cause of a wrong lifetime.  Otherwise the program runs again: with one value checked after every
statement, or with some values never freed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from nncdbg.by_identity import ByIdentity
from nncdbg.comparison.launches import ValueSite as Site
from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.sides import Side, written_slots
from nncdbg.engine.execution.events import Failed
from nncdbg.engine.execution.findings import Finding
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.linking import Allocation
from nncdbg.engine.memory.arena import ArenaAllocation
from nncdbg.engine.memory.blocks import MemoryBlock
from nncdbg.engine.memory.inspected import GUARDS, UNWRITTEN
from nncdbg.engine.memory.reusing import Plan, by_liveness
from nncdbg.engine.values.values import copied
from nncdbg.stats import digests


@dataclass(frozen=True, slots=True, eq=False)
class DigestedStatement:
    """An executed statement: after `tick` others, in the `iteration` of the loops around it."""

    statement: Statement
    tick: int
    iteration: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Changed:
    """A statement that reads `name` after its value changed since the write at tick `written`.

    `slot` was its slot in the innermost frame at that tick.
    """

    reader: DigestedStatement
    name: str
    written: int
    slot: int


@dataclass(frozen=True, slots=True, eq=False)
class Differs:
    """The first statement that differs from the previous run.

    `slot` is the slot with a different value, `actual`; None if `detail` describes another difference.
    """

    moment: DigestedStatement
    slot: int | None
    name: str
    actual: Any
    detail: str = ""


@dataclass(slots=True, eq=False)
class Played:
    """The record of a run.  The next run is compared with its `digests`."""

    digests: array[int] = field(default_factory=lambda: array("Q"))
    ticks: int = 0
    sizes: dict[Site, int] = field(default_factory=dict)
    """Maximum size of each value in bytes."""
    findings: list[tuple[DigestedStatement, Finding]] = field(default_factory=list)
    changed: Changed | None = None
    differs: Differs | None = None
    failed: tuple[DigestedStatement, BaseException] | None = None
    paused: bool = False


class Player:
    """Runs a debugger from its start to the end.

    `before` is the run to compare with, None for the first; its length limits the number of statements.
    `each` is called with every statement after its execution.
    """

    def __init__(
        self,
        debugger: Debugger,
        before: Played | None = None,
        *,
        integrity: bool = True,
        each: Callable[[DigestedStatement], bool] | None = None,
    ) -> None:
        self.debugger = debugger
        self.played = Played()
        self._side = Side(debugger, "the run")
        self._before = before
        self._most = None if before is None else 2 * before.ticks + 1000
        self._integrity = integrity
        self._each = each
        self._written: ByIdentity[tuple[int, int, int]] = ByIdentity()
        """The digest of each array, and the tick and slot of the write."""
        self._now: DigestedStatement | None = None
        allocation = debugger.loaded.allocation
        allocation.watched = GUARDS | UNWRITTEN
        if allocation.inspects:
            allocation.connect(self._found, None)

    def _found(self, finding: Finding) -> None:
        assert self._now is not None
        self.played.findings.append((self._now, finding))

    def run(self) -> Played:
        """Run to the end, or until a failure, a pause, or `each` returns True."""
        machine, played = self.debugger.control.machine, self.played
        self._remember(machine.frames[0], range(1, 1 + len(machine.frames[0].code.graph.inputs)))
        while not machine.ended:
            now = self._now = _moment(machine.frames, machine.tick)
            if self._integrity and played.changed is None:
                self._check_operands(now)
            outcome = self._side.step()
            if isinstance(outcome, Failed):
                played.failed = now, outcome.error
                if self._before is not None and self._before.failed is None and played.differs is None:
                    played.differs = Differs(now, None, "", None, f"it fails: {outcome.error}")
                break
            played.ticks = machine.tick
            self._after(now)
            if self._each is not None and self._each(now):
                break
            if self._stopped(now):
                break
            if self._most is not None and machine.tick > self._most:
                played.differs = played.differs or Differs(now, None, "", None, "it does not finish")
                break
        return played

    def _stopped(self, now: DigestedStatement) -> bool:
        """Return whether the program was paused, or has reached its statement limit."""
        control = self.debugger.control
        if control.paused:
            control.paused = False
            self.played.paused = True
        elif control.limit is not None and (words := control.limit.taken()) is not None:
            self.played.failed = now, control.limit.failure(words)
        return self.played.paused or self.played.failed is not None

    # -- after a statement -------------------------------------------------------------------

    def _after(self, now: DigestedStatement) -> None:
        frame = self.debugger.control.machine.frames[-1]
        written: Sequence[int] = written_slots(frame)
        if frame.pc == 0 and frame.is_loop:
            written = range(2, 1 + len(frame.code.graph.inputs))
        self._digest(now, None, "", hash((frame.code.path, frame.pc, frame.iteration)))
        for slot in written:
            content = frame.slots[slot]
            self._measure(frame, slot, content)
            if self.debugger.loaded.allocation.standing(content) is None:
                number = digest(content)
                self._note_written(content, number, slot)
            else:
                number = 0
            self._digest(now, slot, frame.code.names[slot], number, content)

    def _measure(self, frame: Frame, slot: int, content: Any) -> None:
        name = frame.code.names[slot]
        if name and isinstance(content, np.ndarray) and not content.dtype.hasobject:
            site = (frame.code.path, name)
            self.played.sizes[site] = max(self.played.sizes.get(site, 0), content.nbytes)

    def _digest(
        self, now: DigestedStatement, slot: int | None, name: str, number: int, content: Any = None
    ) -> None:
        number &= (1 << 64) - 1
        digests, before = self.played.digests, self._before
        index = len(digests)
        digests.append(number)
        if before is None or self.played.differs is not None:
            return
        expected = before.digests[index] if index < len(before.digests) else None
        # Values that were no longer valid on one side have no digest to compare.
        if expected == number or (slot is not None and 0 in (expected, number)):
            return
        detail = "" if slot is not None else "it takes a different path"
        self.played.differs = Differs(now, slot, name, copied(content), detail)

    # -- unchanged values ----------------------------------------------------------------------

    def _remember(self, frame: Frame, slots: Sequence[int]) -> None:
        for slot in slots:
            self._note_written(frame.slots[slot], digest(frame.slots[slot]), slot)

    def _note_written(self, content: Any, number: int, slot: int) -> None:
        if self._integrity and isinstance(content, np.ndarray) and content not in self._written:
            self._written.set(content, (number, self.debugger.control.machine.tick, slot))

    def _check_operands(self, now: DigestedStatement) -> None:
        code, pc = now.statement.code, now.statement.pc
        slots = self.debugger.control.machine.frames[-1].slots
        for slot in code.operands[pc]:
            content = slots[slot]
            known = self._written.get(content)
            if known is None or self.debugger.loaded.allocation.standing(content) is not None:
                continue
            number, tick, written = known
            if digest(content) != number:
                self.played.changed = Changed(now, code.names[slot], tick, written)
                return


def _moment(frames: Sequence[Frame], tick: int) -> DigestedStatement:
    frame = frames[-1]
    iteration = tuple(each.iteration for each in frames if each.is_loop)
    return DigestedStatement(Statement(frame.code, frame.pc), tick, iteration)


def digest(content: Any) -> int:
    """Return a 64-bit digest of a slot's content, equal for all NaNs; never 0."""
    return int(digests.digest(content, 8, by_value=True), 16) or 1


Start: TypeAlias = Callable[["str | Allocation"], Debugger]
"""Returns a debugger at the start of the program, with the given allocator."""


def who_changed(start: Start, allocator: str | Allocation, changed: Changed) -> DigestedStatement | None:
    """Return the statement that changed a value it does not own; None if the change does not recur."""
    debugger = start(allocator)
    machine = debugger.control.machine
    content: Any = None
    number = 0
    culprit: list[DigestedStatement] = []

    def take() -> None:
        nonlocal content, number
        content = machine.frames[-1].slots[changed.slot]
        number = digest(content)

    def look(moment: DigestedStatement) -> bool:
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

    def look(moment: DigestedStatement) -> bool:
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
