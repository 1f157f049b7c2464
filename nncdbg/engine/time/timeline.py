"""The timeline of a program: its history, named moments, and branches that values set by hand begin.

Moving through time is undo as far as the log reaches, else replay from a checkpoint.  A value is written once
and memory is not reused, so old values are still in their slots and a step back only moves the pc.  The undo
log of the machine holds what a transfer of control dropped (a finished frame, the slots of the last
iteration).  Dropped values are recomputed from the nearest checkpoint; without history, that is everything
after its last use.  Kernels are functions of their inputs and random streams are numbered, so a replay gives
the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from nncdbg.engine.compilation.code import EVICTED, UNSET, Code, Statement, dying
from nncdbg.engine.execution.events import Ended, Failed, Interrupted, Outcome
from nncdbg.engine.execution.linking import Allocation
from nncdbg.engine.execution.machine import Machine
from nncdbg.engine.execution.undo_log import Transfer
from nncdbg.engine.time.checkpoints import (
    Checkpoints,
    Detour,
    Deviation,
    Edit,
    apply_edits,
    begun,
    delayed,
    detour_at,
    edits_of,
    held_by,
    next_halt,
    parted,
    sets,
    take_back,
)
from nncdbg.engine.time.step_starts import ended_steps
from nncdbg.errors import UsageError
from nncdbg.text.counting import counted


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
class SavedBranch:
    """The state in which a branch was left, with its own past."""

    machine: Machine
    undo_log: tuple[Transfer, ...]
    floor: int
    edits: tuple[Deviation, ...]
    checkpoints: tuple[Machine, ...]


@dataclass(slots=True)
class Branch:
    """One run of the program, which split from its parent after `tick` statements and `steps` of a training.

    `saved` is None for the machine's current branch.
    """

    number: int
    parent: int | None
    tick: int
    title: str
    saved: SavedBranch | None = field(default=None, repr=False)
    steps: int = field(default=0, repr=False)


class Timeline:
    """The history of one machine on all its branches; its values are in the buffers of `allocation`."""

    def __init__(self, machine: Machine, budget: int, allocation: Allocation) -> None:
        self.machine = machine
        self.checkpoints = Checkpoints(machine, budget, allocation)
        self.standing = allocation.standing
        self._begin_again = allocation.begin_again
        self.retains = allocation.retains and machine.remembers
        """False if memory is reused or values are dropped after their last use: going back is a replay."""
        self.overwrites = not allocation.retains
        """Whether memory is reused, so that the content of an old value changes."""
        self.replaying = False
        self.halted: Callable[[], bool] = lambda: False
        """Returns whether the user requested a stop, to interrupt a long replay."""
        self.edits: list[Deviation] = []
        """The deviations of the present branch, by tick: those in effect, then those ahead."""
        self.passed_edits: Callable[[Sequence[Edit], bool], None] = lambda edits, again: None
        """Called with edits of the branch that take effect again (True), or are ahead again (False)."""
        self.replayed = 0
        """Statements executed again so far to go back: the cost of rewinding."""
        self.marks: dict[str, Mark] = {}
        self.branches = {0: Branch(0, None, 0, "the original run")}
        self.branch = 0
        self.checkpoints.saved = self._saved_values

    def __repr__(self) -> str:
        branches = f"{len(self.branches)} branches" if len(self.branches) > 1 else self.branches[0].title
        marks = ", ".join(self.marks) or "none"
        return f"<Timeline after {counted(self.tick, 'statement')}; {branches}, marks: {marks}>"

    # -- moving ------------------------------------------------------------------------------

    @property
    def tick(self) -> int:
        return self.machine.tick

    @property
    def undoable(self) -> int:
        """The number of statements that can be undone without a replay."""
        return self.machine.tick - self.machine.floor

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
        before, tick = machine.tick, max(0, machine.frames[depth].entered - 1)
        if not (self.retains and self._can_leave(depth)):
            self.go_to(tick)
            return
        self._take_back_from(tick + 1, depth)
        del machine.frames[depth:]
        while machine.undo_log and machine.undo_log[-1].tick > tick:
            machine.undo_log.pop()
        machine.tick, machine.ended = tick, False
        machine.floor = min(machine.floor, tick)
        self._after_moving(before)

    def _can_leave(self, depth: int) -> bool:
        """Return whether the frames around the one at `depth` have what the statement that began it reads.

        A state from a file may begin inside a frame, and without values that are not read later.
        """
        outer = self.machine.frames[depth - 1]
        return self.machine.frames[depth].entered > 0 and _is_present(outer.slots, outer.code.reads(outer.pc))

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
        # Detours ahead on which no edit depends: the op runs by its kernel next time.
        while self.edits and isinstance(self.edits[-1], Detour) and self.edits[-1].tick > self.machine.tick:
            self.checkpoints.forget(self.edits.pop().tick)

    def _go_back(self, tick: int) -> None:
        machine = self.machine
        # At the very start nothing is computed, so undoing saves nothing.
        while self.retains and machine.tick > tick > 0 and not self.checkpoints.nearer(tick):
            self._take_back_from(machine.tick)
            if not self._undoable():
                break
            machine.undo()
        if machine.tick > tick or not self.retains:
            self._restore(tick)

    def _undoable(self) -> bool:
        """Return whether one undo restores a state with all values that are still needed."""
        machine = self.machine
        if not machine.can_undo:
            return False
        frame = machine.frames[-1]
        transfer = machine.last_transfer
        if transfer is not None:
            return _is_present(*transfer.needed())
        return _is_present(frame.slots, frame.code.reads(frame.pc - 1))

    def _take_back_from(self, tick: int, depth: int | None = None) -> None:
        """Undo the edits in effect made at `tick` or later, in the frames below `depth`."""
        for edit in reversed(edits_of(self.edits)):
            if tick <= edit.tick <= self.machine.tick:
                take_back(self.machine, edit, depth)

    def _restore(self, tick: int) -> None:
        """Restore the last checkpoint at or before `tick` and run on from there.

        Drops later checkpoints; the run makes new ones close to `tick`, so that going back step by step
        replays little.
        """
        self.checkpoints.forget(tick + 1)
        self._reach(tick)
        if tick == 0:
            self._begin_again()
        self.machine.become(begun(self.checkpoints.states, tick, self.edits))
        self._forward(self.machine, tick, self.edits)

    def _reach(self, tick: int) -> None:
        """Fetch a state near `tick` that is kept elsewhere, which has no deviations of the branch."""
        first = min((each.tick for each in self.edits), default=tick + 1)
        self.checkpoints.reach(min(tick, first - 1))

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
                if (
                    isinstance(outcome, Interrupted)
                    and machine is self.machine
                    and self.checkpoints.over_budget
                ):
                    self.checkpoints.enforce()

    def _again(self, machine: Machine, edits: Iterable[Deviation]) -> Outcome | None:
        self.replayed += 1
        return _one_statement(machine, edits)

    # -- forward, with the branch's deviations -------------------------------------------------

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
        self._reach(tick)
        machine = begun(self.checkpoints.states, tick, self.edits)
        self._forward(machine, tick, self.edits)
        return machine

    # -- values that were dropped ------------------------------------------------------------

    def recompute(self, depth: int, slot: int) -> Any:
        """Compute an evicted value of a frame on the stack again, on a separate machine."""
        self._reach(self.machine.frames[depth].entered)
        for source in reversed(
            [state for state in self.checkpoints.states if state.tick <= self.machine.tick]
        ):
            machine = begun([source], source.tick, self.edits)
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
        if _is_present(frame.slots, wanted):
            return frame.slots
        slots = frame.slots.copy()
        for slot in wanted:
            if slots[slot] is EVICTED:
                slots[slot] = self.recompute(depth, slot)
        return slots

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

    # -- edits -----------------------------------------------------------------------------

    @property
    def last_edit(self) -> int:
        """The tick of the last edit in effect; -1 if there is none."""
        ticks = (edit.tick for edit in edits_of(self.edits))
        return max((tick for tick in ticks if tick <= self.machine.tick), default=-1)

    def edit_that_set(self, content: Any) -> Edit | None:
        """Return the edit of this branch that stored this object; None if a statement computed it."""
        return next((edit for edit in edits_of(self.edits) if edit.changes[0][3] is content), None)

    # -- marks ---------------------------------------------------------------------------

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

    def return_to(self, mark: Mark) -> None:
        """Go to a mark, with the deviations that the branch had when the mark was set."""
        if mark.branch != self.branch:
            self.switch(mark.branch)
        if mark.edits is not None:
            mine, then = ([e for e in edits if e.tick <= mark.tick] for edits in (self.edits, mark.edits))
            tick = parted(mine, then)
            if tick is not None:
                self.checkpoints.forget(tick)
                self.edits = list(mark.edits)
                self._restore(mark.tick)
                return
        self.go_to(mark.tick)

    # -- edits and branches ------------------------------------------------------------------

    def tick_on(self, branch: Branch) -> int:
        """Return the number of statements that a branch has executed."""
        return (branch.saved or self).machine.tick

    def state_of(self, branch: Branch) -> tuple[Statement, Sequence[Machine], Sequence[Deviation]]:
        """Return a branch's next statement, its checkpoints (the first is the start), and its deviations."""
        if branch.saved is None:
            return self.machine.next_statement, self.checkpoints.states, self.edits
        return branch.saved.machine.next_statement, branch.saved.checkpoints, branch.saved.edits

    @property
    def ahead(self) -> list[Edit]:
        """The edits of the present branch that take effect later, in time order."""
        return self.ahead_on(self.branches[self.branch])

    def ahead_on(self, branch: Branch) -> list[Edit]:
        """Return the edits of a branch that take effect later than its present tick."""
        tick = self.tick_on(branch)
        return [edit for edit in edits_of(self._deviations_of(branch.number)) if edit.tick > tick]

    def detour(self, code: Code) -> None:
        """Step into the statement at the pc by its micro program."""
        machine = self.machine
        if self.detour_next:
            self.step()
            return
        self.checkpoints.forget(machine.tick + 1)
        passed = [each for each in self.edits if each.tick <= machine.tick]
        ahead = delayed(self.edits[len(passed) :], machine, code)
        machine.push_formula(code)
        self.edits = [*passed, Detour(machine.tick, code), *ahead]

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
        number, steps = max(self.branches) + 1, ended_steps(self.machine)
        fork = Branch(number, self.branch, self.machine.tick, title, steps=steps)
        self.branches[fork.number] = fork
        self.branch = fork.number
        self.edits = [each for each in self.edits if each.tick <= fork.tick]
        self.checkpoints.forget(fork.tick)
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
        self.edits, self.checkpoints.states = list(saved.edits), list(saved.checkpoints)
        self.branch, self.branches[number].saved = number, None
        if self.retains:
            self.machine.become(saved.machine.clone(), [each.copy() for each in saved.undo_log], saved.floor)
        else:
            self._restore(saved.machine.tick)

    def _save(self) -> SavedBranch:
        undo_log = tuple(each.copy() for each in self.machine.undo_log)
        return SavedBranch(
            self.machine.clone(),
            undo_log,
            self.machine.floor,
            tuple(self.edits),
            tuple(self.checkpoints.states),
        )

    def _saved_values(self) -> Iterator[Any]:
        """Yield the values of the branches that were left, once for each holder."""
        for branch in self.branches.values():
            if branch.saved is not None:
                machines = branch.saved.machine, *branch.saved.checkpoints[1:]
                yield from held_by(machines, branch.saved.undo_log)

    def other(self, number: int, tick: int) -> Machine:
        """Return a separate machine on branch `number` at `tick`, run on if the branch was left before it."""
        saved = self.branches[number].saved
        if saved is None:
            return self.diversion(tick)
        if self.retains and saved.machine.tick <= tick:
            machine = saved.machine.clone()
        else:
            machine = begun(saved.checkpoints, tick, saved.edits)
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


def _is_present(slots: Sequence[Any], wanted: Iterable[int]) -> bool:
    return all(slots[slot] is not EVICTED for slot in wanted)
