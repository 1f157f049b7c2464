"""Moving through time: undo within the journal, else replay from a checkpoint.

A value is written once and memory is not reused, so old values are still in their slots and a
step back only moves the pc.  The machine's journal holds what a transfer of control dropped (a
finished frame, the slots of the last iteration).  Both are bounded: beyond `budget` bytes or
`JOURNAL` entries the oldest are dropped.  Checkpoints at roughly logarithmic distances are kept,
and dropped values are recomputed from the nearest one.  Kernels are functions of their inputs and
random streams are numbered, so a replay gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from nncdbg.engine.compilation.code import UNSET, Code, Statement
from nncdbg.engine.compilation.liveness import dying, last_uses
from nncdbg.engine.errors import UsageError
from nncdbg.engine.execution.events import Ended, Event, Failed, Interrupted, Outcome
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.linking import Allocation
from nncdbg.engine.execution.machine import Machine
from nncdbg.engine.execution.transfers import Finished, Transfer
from nncdbg.engine.time.deviations import (
    Detour,
    Deviation,
    Edit,
    apply_edits,
    delayed,
    detour_at,
    edits_of,
    next_halt,
    parted,
    sets,
    take_back,
)
from nncdbg.engine.time.visits import last_visit

JOURNAL = 2048
"""Transfers of control that can be undone without a replay."""

SPACING = 1024
"""Ticks between checkpoints at the newest end of the timeline."""


class _Evicted:
    """The content of a slot after its value was dropped to stay within the budget."""

    def __repr__(self) -> str:
        return "<evicted>"


EVICTED = _Evicted()


@dataclass(frozen=True, slots=True)
class Mark:
    """A named moment; `at` is the next statement there.

    `edits` are the deviations of the branch at that time; None: its present deviations.
    """

    name: str
    branch: int
    tick: int
    edits: tuple[Deviation, ...] | None = field(default=None, repr=False)
    at: Statement | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Saved:
    """The state in which a branch was left, with its own past."""

    machine: Machine
    journal: tuple[Transfer, ...]
    floor: int
    edits: tuple[Deviation, ...]
    checkpoints: tuple[Machine, ...]


@dataclass(slots=True)
class Branch:
    """One run of the program, which split from its parent after `tick` statements.

    `saved` is None for the machine's current branch.
    """

    number: int
    parent: int | None
    tick: int
    title: str
    saved: Saved | None = field(default=None, repr=False)


class Timeline:
    """The past of one machine; its values are in the buffers of `allocation`."""

    def __init__(self, machine: Machine, budget: int, allocation: Allocation) -> None:
        self.machine = machine
        self.budget = budget
        self.live_bytes = allocation.live_bytes
        self.standing = allocation.standing
        self._begin_again = allocation.begin_again
        self.retains = allocation.retains
        """False if memory is reused: old values are overwritten, and going back is a replay."""
        self.replaying = False
        self.halted: Callable[[], bool] = lambda: False
        """Returns whether the user requested a stop, to interrupt a long replay."""
        self.edits: list[Deviation] = []
        """The deviations of the present branch, by tick: those in effect, then those ahead."""
        self.passed_edits: Callable[[Sequence[Edit], bool], None] = _unreported
        """Called with edits of the branch that take effect again (True), or are ahead again (False)."""
        self.marks: dict[str, Mark] = {}
        self.branches = {0: Branch(0, None, 0, "the original run")}
        self.branch = 0
        self.replayed = 0
        """Statements executed again so far to go back: the cost of rewinding."""
        self._threshold = budget
        self._checkpoints: list[Machine] = [machine.clone()]
        machine.listeners.append(self._hear)

    def __repr__(self) -> str:
        branches = f"{len(self.branches)} branches" if len(self.branches) > 1 else self.branches[0].title
        marks = ", ".join(self.marks) or "none"
        return f"<Timeline after {self.tick} statements; {branches}, marks: {marks}>"

    # -- bounds on memory ------------------------------------------------------------------

    def _hear(self, event: Event) -> None:
        machine = self.machine
        journal = machine.journal
        if len(journal) > JOURNAL:
            for _ in range(JOURNAL // 4):
                machine.forget()
        if machine.tick - self._checkpoints[-1].tick >= SPACING:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Keep the machine's present state, and thin out the older states."""
        if not self.retains or self.machine.ended or self.machine.tick <= self._checkpoints[-1].tick:
            return
        state = self.machine.clone()
        for frame in state.frames:
            _drop_dead(frame)
        kept = [state]
        for older, oldest in pairwise(reversed(self._checkpoints)):
            # A state may go if the gap that it leaves is no wider than its distance from now.
            if kept[-1].tick - oldest.tick > state.tick - kept[-1].tick:
                kept.append(older)
        self._checkpoints = [self._checkpoints[0], *reversed(kept)]

    @property
    def over_budget(self) -> bool:
        return self.live_bytes() > self._threshold

    def enforce(self) -> None:
        """Drop old values until memory is within the budget, or only needed values are left."""
        self.checkpoint()
        journal = self.machine.journal
        while journal and self.live_bytes() > self.budget:
            self.machine.forget()
        for frame in self.machine.frames:
            if self.live_bytes() <= self.budget:
                break
            _drop_dead(frame)
        # If all of it is needed, check again only after it has grown.
        self._threshold = max(self.budget, self.live_bytes() + self.live_bytes() // 8)

    # -- moving ------------------------------------------------------------------------------

    @property
    def tick(self) -> int:
        return self.machine.tick

    @property
    def undoable(self) -> int:
        """The number of statements that can be undone without a replay."""
        return self.machine.tick - self.machine.floor

    def finished(self) -> Iterator[Finished]:
        """Yield the finished frames and iterations that the journal still has, latest first."""
        return self.machine.finished()

    def last_visit(self, wanted: Callable[[Code], bool], pc: int) -> int | None:
        """Return when statement `pc` of a wanted block was last about to run; None if unknown."""
        return last_visit(self.machine, wanted, pc)

    def tick_on(self, branch: Branch) -> int:
        """Return the number of statements that a branch has executed."""
        return (branch.saved or self).machine.tick

    def state_of(self, branch: Branch) -> tuple[Statement, Sequence[Machine], Sequence[Deviation]]:
        """Return a branch's next statement, its checkpoints (the first is the start), and its deviations."""
        if branch.saved is None:
            return self.machine.next_statement, self._checkpoints, self.edits
        return branch.saved.machine.next_statement, branch.saved.checkpoints, branch.saved.edits

    def back(self) -> None:
        """Go back one statement.  The tick must be above 0."""
        self.go_to(self.machine.tick - 1)

    def back_over(self) -> None:
        """Go back one statement in this frame, over the whole of a block or call that it executed."""
        depth = len(self.machine.frames)
        self.back()
        if len(self.machine.frames) > depth:
            self._before_frame(depth)

    def back_out(self) -> None:
        """Go back to the statement that began the innermost frame; from the outermost, to the start."""
        depth = len(self.machine.frames) - 1
        if depth == 0:
            self.go_to(0)
        else:
            self._before_frame(depth)

    def _before_frame(self, depth: int) -> None:
        """Restore the state before the frame at `depth` began, including the frames around it."""
        machine = self.machine
        before, tick = machine.tick, machine.frames[depth].entered - 1
        if not self.retains:
            self.go_to(tick)
            return
        self._take_back_from(tick + 1, depth)
        del machine.frames[depth:]
        while machine.journal and machine.journal[-1].tick > tick:
            machine.journal.pop()
        machine.tick, machine.ended = tick, False
        machine.floor = min(machine.floor, tick)
        self._after_moving(before)

    def go_to(self, tick: int) -> None:
        """Go to the state after `tick` statements: backwards by undo or replay, forwards by running.

        Stops earlier if the program ends or fails before.  Edits of the branch are kept: those later
        than `tick` are ahead again.
        """
        before = self.machine.tick
        if tick < before:
            self._go_back(tick)
        else:
            self._forward(self.machine, tick, self.edits)
        self._after_moving(before)

    def _after_moving(self, before: int) -> None:
        """Report the edits passed since tick `before`, and drop detours that are not needed."""
        low, high = sorted((before, self.machine.tick))
        passed = [edit for edit in edits_of(self.edits) if low < edit.tick <= high]
        if passed:
            self.passed_edits(passed, high > before)
        self._drop_detours_ahead()

    def _go_back(self, tick: int) -> None:
        machine = self.machine
        # At the very start nothing is computed, so undoing saves nothing.
        while self.retains and machine.tick > tick > 0 and not self._nearer_checkpoint(tick):
            self._take_back_from(machine.tick)
            if not self._undoable():
                break
            machine.undo()
        if machine.tick > tick or not self.retains:
            self._restore(tick)

    def _nearer_checkpoint(self, tick: int) -> bool:
        """Return whether running on from a checkpoint takes far fewer statements than undoing."""
        return self.machine.tick - tick > 64 and any(
            4 * (tick - state.tick) <= self.machine.tick - tick - 64
            for state in self._checkpoints
            if state.tick <= tick
        )

    def _undoable(self) -> bool:
        """Return whether one undo restores a state with all values that are still needed."""
        machine = self.machine
        if not machine.can_undo:
            return False
        frame = machine.frames[-1]
        transfer = machine.last_transfer
        if transfer is not None:
            return _stands(*transfer.needed())
        return _stands(frame.slots, frame.code.reads(frame.pc - 1))

    def _take_back_from(self, tick: int, depth: int | None = None) -> None:
        """Undo the edits in effect made at `tick` or later, in the frames below `depth`."""
        for edit in reversed(edits_of(self.edits)):
            if tick <= edit.tick <= self.machine.tick:
                take_back(self.machine, edit, depth)

    def _drop_detours_ahead(self) -> None:
        """Drop detours ahead on which no edit depends: the op runs by its kernel next time."""
        while self.edits and isinstance(self.edits[-1], Detour) and self.edits[-1].tick > self.machine.tick:
            self._forget_checkpoints(self.edits.pop().tick)

    def _forget_checkpoints(self, tick: int) -> None:
        """Drop the states of `tick` and later: they contain a removed edit, or lack a new one."""
        self._checkpoints[1:] = [state for state in self._checkpoints[1:] if state.tick < tick]

    def _restore(self, tick: int) -> None:
        """Restore the last checkpoint at or before `tick` and run on from there.

        Drops later checkpoints; the run makes new ones close to `tick`, so that going back step by step
        replays little.
        """
        self._forget_checkpoints(tick + 1)
        if tick == 0:
            self._begin_again()
        self.machine.become(_begun(self._checkpoints, tick, self.edits))
        self._forward(self.machine, tick, self.edits)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Suppress the reports of findings while statements run again."""
        before, self.replaying = self.replaying, True
        try:
            yield
        finally:
            self.replaying = before

    def _forward(self, machine: Machine, tick: int, edits: Sequence[Deviation]) -> None:
        """Run a machine to `tick`, applying the edits on the way; stop early if the user halts it."""
        with self.quiet():
            while machine.tick < tick:
                outcome = self._again(machine, edits)
                if isinstance(outcome, (Ended, Failed)) or self.halted():
                    break
                if isinstance(outcome, Interrupted) and machine is self.machine and self.over_budget:
                    self.enforce()

    def _again(self, machine: Machine, edits: Iterable[Deviation]) -> Outcome | None:
        self.replayed += 1
        return _one_statement(machine, edits)

    # -- forward, with the branch's deviations -------------------------------------------------

    @property
    def ahead(self) -> list[Edit]:
        """The edits of the present branch that take effect later, in time order."""
        return self.ahead_on(self.branches[self.branch])

    def ahead_on(self, branch: Branch) -> list[Edit]:
        """Return the edits of a branch that take effect later than its present tick."""
        tick = self.tick_on(branch)
        return [edit for edit in edits_of(self._deviations_of(branch.number)) if edit.tick > tick]

    @property
    def detour_next(self) -> bool:
        """Return whether the next statement runs by its micro program because an edit ahead depends on it."""
        return detour_at(self.edits, self.machine.tick) is not None

    def step(self) -> Outcome | None:
        """Execute the next statement with the branch's deviations, and apply the edits made after it."""
        before = self.machine.tick
        outcome = _one_statement(self.machine, self.edits)
        self._arrived_at_edits(before)
        return outcome

    def run(self) -> Outcome:
        """Run the machine until it returns, at the latest until the branch's next deviation."""
        before = self.machine.tick
        self.machine.halt = next_halt(self.edits, before)
        outcome = self.machine.run()
        self._arrived_at_edits(before)
        return outcome

    def _arrived_at_edits(self, before: int) -> None:
        if self.edits and self.machine.tick > before:
            applied = apply_edits(self.machine, self.edits)
            if applied:
                self.passed_edits(applied, True)

    def diversion(self, tick: int | None = None) -> Machine:
        """Return a separate machine in the state of `tick` (now, if None), to inspect or to run on.

        It is at an earlier tick if the user halted it on the way.  It holds every value that it has
        computed, even if the main machine reuses memory.
        """
        if tick is None:
            tick = self.machine.tick
        if self.retains and tick == self.machine.tick:
            return self.machine.clone()
        machine = _begun(self._checkpoints, tick, self.edits)
        self._forward(machine, tick, self.edits)
        return machine

    # -- values that were dropped ------------------------------------------------------------

    def recompute(self, depth: int, slot: int) -> Any:
        """Compute an evicted value of a frame on the stack again, on a separate machine."""
        for source in reversed([state for state in self._checkpoints if state.tick <= self.machine.tick]):
            machine = _begun([source], source.tick, self.edits)
            value = self._find_again(machine, depth, slot)
            if value is not UNSET:
                return value
        return UNSET

    def recalled(self, pc: int) -> list[Any] | None:
        """Return the slots of the innermost frame, with all that its statement at `pc` reads and writes.

        None if the user halted the replay.
        """
        if not self.retains:
            there = self.diversion()
            return there.frames[-1].slots if there.tick == self.machine.tick else None
        frame, depth = self.machine.frames[-1], len(self.machine.frames) - 1
        wanted = (*frame.code.operands[pc], *frame.code.result_slots(pc))
        if _stands(frame.slots, wanted):
            return frame.slots
        slots = frame.slots.copy()
        for slot in wanted:
            if slots[slot] is EVICTED:
                slots[slot] = self.recompute(depth, slot)
        return slots

    @property
    def last_edit(self) -> int:
        """The tick of the last edit in effect; -1 if there is none."""
        ticks = (edit.tick for edit in edits_of(self.edits))
        return max((tick for tick in ticks if tick <= self.machine.tick), default=-1)

    def edit_that_set(self, content: Any) -> Edit | None:
        """Return the edit of this branch that stored this object; None if a statement computed it."""
        return next((edit for edit in edits_of(self.edits) if edit.changes[0][3] is content), None)

    def _find_again(self, machine: Machine, depth: int, slot: int) -> Any:
        """Run a machine until the slot of that frame is written; UNSET if it was evicted there too."""
        here = self.machine.frames[depth]
        code, visit = here.code, (here.entered, here.iteration)
        ticks = (edit.tick for edit in self.edits if sets(edit, depth, slot))
        edited = max((tick for tick in ticks if tick <= self.machine.tick), default=0)
        outcome: Outcome | None = None
        with self.quiet():
            while True:
                frame = machine.frames[depth] if len(machine.frames) > depth else None
                here_now = frame is not None and (frame.entered, frame.iteration) == visit
                if frame is not None and here_now and machine.tick >= edited:
                    value = frame.slots[slot]
                    if value is EVICTED:
                        return UNSET
                    if value is not UNSET and code.definition[slot] < frame.pc:
                        return value
                if machine.tick >= self.machine.tick or isinstance(outcome, (Ended, Failed)):
                    return UNSET
                outcome = self._again_releasing(machine, slot, code)

    def _again_releasing(self, machine: Machine, wanted: int, code: Code) -> Outcome | None:
        """Run one statement, then drop dead values, so that memory stays bounded."""
        frame, pc = machine.frames[-1], machine.frames[-1].pc
        outcome = self._again(machine, self.edits)
        if frame.pc == pc + 1:
            for slot in dying(frame.code)[pc]:
                if frame.code is not code or slot != wanted:
                    frame.slots[slot] = EVICTED
        return outcome

    # -- marks, edits, branches --------------------------------------------------------------

    def mark(self, name: str) -> Mark:
        at = self.machine.next_statement
        self.marks[name] = Mark(name, self.branch, self.machine.tick, tuple(self.edits), at)
        return self.marks[name]

    def find_mark(self, name: str) -> Mark:
        """Return the mark with a name.  Raises UsageError if there is none."""
        mark = self.marks.get(name)
        if mark is None:
            raise UsageError(f"there is no mark {name!r}", hint=f"marks: {', '.join(self.marks) or 'none'}")
        return mark

    def forget_mark(self, name: str) -> None:
        """Remove a mark.  Raises UsageError if there is none."""
        del self.marks[self.find_mark(name).name]

    def rename_mark(self, name: str, to: str) -> None:
        """Rename a mark; it keeps its position.  Raises UsageError if there is none, or if `to` exists."""
        mark = self.find_mark(name)
        if to != name and to in self.marks:
            raise UsageError(f"the mark {to!r} already exists", hint="delete the mark, or use another name")
        marks = [replace(each, name=to) if each is mark else each for each in self.marks.values()]
        self.marks = {each.name: each for each in marks}

    def detour(self, code: Code) -> None:
        """Step into the statement at the pc by its micro program."""
        machine = self.machine
        if self.detour_next:
            self.step()
            return
        self._forget_checkpoints(machine.tick + 1)
        passed = [each for each in self.edits if each.tick <= machine.tick]
        ahead = delayed(self.edits[len(passed) :], machine, code)
        machine.push_formula(code)
        self.edits = [*passed, Detour(machine.tick, code), *ahead]

    def return_to(self, mark: Mark) -> None:
        """Go to a mark, with the deviations that the branch had when the mark was set."""
        if mark.branch != self.branch:
            self.switch(mark.branch)
        if mark.edits is not None:
            mine, then = ([e for e in edits if e.tick <= mark.tick] for edits in (self.edits, mark.edits))
            tick = parted(mine, then)
            if tick is not None:
                self._forget_checkpoints(tick)
                self.edits = list(mark.edits)
                self._restore(mark.tick)
                return
        self.go_to(mark.tick)

    def without(self, edit: Edit) -> int:
        """Return the nearest ancestor of the present branch that does not have this edit."""
        number = self.branch
        while any(each.changes is edit.changes for each in edits_of(self._deviations_of(number))):
            parent = self.branches[number].parent
            assert parent is not None, "every edit starts a branch"
            number = parent
        return number

    def _deviations_of(self, number: int) -> Sequence[Deviation]:
        saved = self.branches[number].saved
        return self.edits if saved is None else saved.edits

    def fork(self, title: str) -> Branch:
        """Leave the present run as a branch, and continue in a new one from here.

        Edits ahead stay with the branch that is left.
        """
        self.branches[self.branch].saved = self._save()
        fork = Branch(max(self.branches) + 1, self.branch, self.machine.tick, title)
        self.branches[fork.number] = fork
        self.branch = fork.number
        self.edits = [each for each in self.edits if each.tick <= fork.tick]
        self._forget_checkpoints(fork.tick)
        return fork

    def abandon(self, fork: Branch) -> None:
        """Remove a fork after its edit failed."""
        del self.branches[fork.number]
        assert fork.parent is not None
        self.branch = fork.parent
        saved = self.branches[self.branch].saved
        assert saved is not None
        self.edits, self.branches[self.branch].saved = list(saved.edits), None

    def switch(self, number: int) -> None:
        """Switch to branch `number`, in the state in which it was left."""
        saved = self.branches[number].saved
        if saved is None:
            return
        self.branches[self.branch].saved = self._save()
        self.edits, self._checkpoints = list(saved.edits), list(saved.checkpoints)
        self.branch, self.branches[number].saved = number, None
        if self.retains:
            self.machine.become(saved.machine.clone(), [each.copy() for each in saved.journal], saved.floor)
        else:
            self._restore(saved.machine.tick)

    def _save(self) -> Saved:
        journal = tuple(each.copy() for each in self.machine.journal)
        return Saved(
            self.machine.clone(), journal, self.machine.floor, tuple(self.edits), tuple(self._checkpoints)
        )

    def other(self, number: int, tick: int) -> Machine:
        """Return a separate machine on branch `number` at `tick`, run on if the branch was left before it."""
        saved = self.branches[number].saved
        if saved is None:
            return self.diversion(tick)
        if self.retains and saved.machine.tick <= tick:
            machine = saved.machine.clone()
        else:
            machine = _begun(saved.checkpoints, tick, saved.edits)
        self._forward(machine, tick, saved.edits)
        return machine


def _one_statement(machine: Machine, edits: Iterable[Deviation]) -> Outcome | None:
    """Execute the next statement with these deviations, and apply the edits made after it."""
    detour = detour_at(edits, machine.tick)
    outcome = None
    if detour is None:
        outcome = machine.step()
    else:
        machine.push_formula(detour.code)
    apply_edits(machine, edits)
    return outcome


def _unreported(edits: Sequence[Edit], again: bool) -> None:
    """Ignore the edits: the default listener."""


def _begun(checkpoints: Sequence[Machine], tick: int, edits: Iterable[Deviation]) -> Machine:
    """Return a copy of the last checkpoint at or before `tick`, with the edits made exactly there."""
    machine = next(state for state in reversed(checkpoints) if state.tick <= tick).clone()
    apply_edits(machine, edits)
    return machine


def _stands(slots: Sequence[Any], wanted: Iterable[int]) -> bool:
    return all(slots[slot] is not EVICTED for slot in wanted)


def _drop_dead(frame: Frame) -> None:
    """Drop the slots that no later statement of the frame reads; keep those set at its start."""
    last = last_uses(frame.code)
    for slot, written in enumerate(frame.code.definition):
        if written < 0:
            continue
        if written >= frame.pc:
            frame.slots[slot] = UNSET
        elif last[slot] < frame.pc:
            frame.slots[slot] = EVICTED
