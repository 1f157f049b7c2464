"""The timeline of a program: its history, named moments, and branches that values set by hand begin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.execution.linking import Allocation
from nncdbg.engine.execution.machine import Machine
from nncdbg.engine.execution.transfers import Transfer
from nncdbg.engine.time.checkpoints import begun, held_by
from nncdbg.engine.time.deviations import Detour, Deviation, Edit, delayed, edits_of, parted
from nncdbg.engine.time.history import History
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
    journal: tuple[Transfer, ...]
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


class Timeline(History):
    """The history of one machine on all its branches, with marks."""

    def __init__(self, machine: Machine, budget: int, allocation: Allocation) -> None:
        super().__init__(machine, budget, allocation)
        self.marks: dict[str, Mark] = {}
        self.branches = {0: Branch(0, None, 0, "the original run")}
        self.branch = 0
        self.checkpoints.saved = self._saved_values

    def __repr__(self) -> str:
        branches = f"{len(self.branches)} branches" if len(self.branches) > 1 else self.branches[0].title
        marks = ", ".join(self.marks) or "none"
        return f"<Timeline after {counted(self.tick, 'statement')}; {branches}, marks: {marks}>"

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
            self.machine.become(saved.machine.clone(), [each.copy() for each in saved.journal], saved.floor)
        else:
            self._restore(saved.machine.tick)

    def _save(self) -> SavedBranch:
        journal = tuple(each.copy() for each in self.machine.journal)
        return SavedBranch(
            self.machine.clone(),
            journal,
            self.machine.floor,
            tuple(self.edits),
            tuple(self.checkpoints.states),
        )

    def _saved_values(self) -> Iterator[Any]:
        """Yield the values of the branches that were left, once for each holder."""
        for branch in self.branches.values():
            if branch.saved is not None:
                machines = branch.saved.machine, *branch.saved.checkpoints[1:]
                yield from held_by(machines, branch.saved.journal)

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
