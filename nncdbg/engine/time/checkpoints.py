"""Checkpoints of a machine at roughly logarithmic distances, and the bounds on the memory of its past.

The undo log is bounded to `UNDO_LIMIT` entries and `STEPS` steps of a run, old values to `budget` bytes: the
oldest are dropped, and recomputed from the nearest checkpoint.

A replay also needs the user's deviations on a branch: values set, and micro programs stepped into.  A
deviation belongs to its branch.  It is in effect from its tick on; before that tick it is "ahead", and takes
effect when the run reaches the tick.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise, zip_longest
from typing import Any, TypeAlias

from nncdbg.engine.compilation.code import EVICTED, UNSET, Code, Statement, last_uses
from nncdbg.engine.execution.events import Ended, Event, Failed, Iterated
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.linking import Allocation
from nncdbg.engine.execution.machine import Machine
from nncdbg.engine.execution.undo_log import Transfer


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


UNDO_LIMIT = 2048
"""Transfers of control that can be undone without a replay."""

SPACING = 1024
"""Ticks between checkpoints at the newest end of the timeline."""

STEPS = 50
"""Steps of a ``run`` line that can be undone without a replay."""


COUNTING = 1 << 11
"""Bytes of new values between two checks, for each value that a check has to count."""

MOST = 1 << 25
"""The most bytes of new values between two checks because of `COUNTING`."""


UNCOUNTED = 15
"""Checks without counting, after one that found the needed values alone to exceed the budget."""


class Checkpoints:
    """The checkpoints of one machine, and the budget of its old values in the buffers of `allocation`."""

    def __init__(self, machine: Machine, budget: int, allocation: Allocation) -> None:
        self.machine = machine
        self.budget = budget
        self.live_bytes = allocation.live_bytes
        self._allocation = allocation
        self.saved: Callable[[], Iterable[Any]] = tuple
        """Returns the values that other branches hold, once for each holder."""
        self.retains = allocation.retains
        self.earlier: Callable[[int, int], Machine | None] = lambda above, tick: None
        """Returns the last state above one tick and up to another that is kept elsewhere, as in a file."""
        self.states: list[Machine] = [machine.clone()]
        self._threshold = budget
        self._growth = 0
        """Bytes of new values until the next check, if the needed values alone exceed the budget."""
        self._uncounted = 0
        """How many of the next checks drop all old values without counting what is left."""
        self._steps: deque[int] = deque()
        """The ticks at which the latest steps of a run began."""
        machine.listeners.append(self._hear)

    def _hear(self, event: Event) -> None:
        machine = self.machine
        if isinstance(event, Iterated) and event.frame.code.epoch is not None:
            self._step_began()
        if len(machine.undo_log) > UNDO_LIMIT:
            for _ in range(UNDO_LIMIT // 4):
                machine.forget()
        if machine.tick - self.states[-1].tick >= SPACING:
            self.keep()

    def _step_began(self) -> None:
        """Forget all but the latest steps, so that memory does not grow with the length of a training."""
        machine, steps = self.machine, self._steps
        while steps and steps[-1] >= machine.tick:
            steps.pop()
        steps.append(machine.tick)
        if len(steps) > STEPS:
            first = steps.popleft()
            while machine.undo_log and machine.undo_log[0].tick <= first:
                machine.forget()

    def keep(self) -> None:
        """Keep the machine's present state, and thin out the older states."""
        if not self.retains or self.machine.ended or self.machine.tick <= self.states[-1].tick:
            return
        state = self.machine.clone()
        for frame in state.frames:
            _drop_dead(frame)
        kept = [state]
        for older, oldest in pairwise(reversed(self.states)):
            # A state may go if the gap that it leaves is no wider than its distance from now.
            if kept[-1].tick - oldest.tick > state.tick - kept[-1].tick:
                kept.append(older)
        self.states = [self.states[0], *reversed(kept)]

    def reach(self, tick: int) -> None:
        """Fetch the last state up to `tick` that is kept elsewhere, if it is nearer than those here."""
        number = bisect_right(self.states, tick, key=lambda state: state.tick)
        state = self.earlier(self.states[number - 1].tick, tick) if number else None
        if state is not None:
            self.states.insert(number, state)

    def forget(self, tick: int) -> None:
        """Drop the states of `tick` and later: they contain a removed edit, or lack a new one."""
        self.states[1:] = [state for state in self.states[1:] if state.tick < tick]

    def nearer(self, tick: int) -> bool:
        """Return whether running on from a checkpoint takes far fewer statements than undoing."""
        distance = self.machine.tick - tick
        return distance > 64 and any(
            4 * (tick - state.tick) <= distance - 64 for state in self.states if state.tick <= tick
        )

    @property
    def over_budget(self) -> bool:
        """Whether old values use more memory than allowed; a machine without a past drops them itself."""
        return self.machine.remembers and self.live_bytes() > self._threshold

    def enforce(self) -> None:
        """If over budget, drop old values to three quarters of it, or until only needed values are left."""
        if not self.over_budget:
            return
        self.keep()
        if self._uncounted:
            self._uncounted -= 1
            while self.machine.undo_log:
                self.machine.forget()
            for frame in self.machine.frames:
                _drop_dead(frame)
            self._threshold = max(self.budget, self.live_bytes() + self._growth)
            return
        counted = self.recount()
        # Leave room for new values: counting takes much longer than a statement.
        goal = self.budget - self.budget // 4
        undo_log, dropped = self.machine.undo_log, self._allocation.dropped
        while undo_log and self.live_bytes() > goal:
            dropped(self.machine.forget().values())
        for frame in self.machine.frames:
            if self.live_bytes() <= goal:
                break
            dropped(_drop_dead(frame))
        # If all of it is needed, check again only after it has grown: by an eighth, and by so much that the
        # statements which make the new values take longer than counting.
        self._growth = max(self.live_bytes() // 8, min(COUNTING * counted, MOST))
        self._threshold = max(self.budget, self.live_bytes() + self._growth)
        if self.live_bytes() > goal and counted:
            self._uncounted = UNCOUNTED

    def recount(self) -> int:
        """Make `live_bytes` exact: count the values that the machine, its past and other branches hold.

        Return the number of values that were counted one by one.
        """
        start, *states = self.states
        held = chain(held_by([self.machine, *states], self.machine.undo_log), self.saved())
        return self._allocation.recount(held, held_by([start], ()))


def begun(states: Sequence[Machine], tick: int, edits: Iterable[Deviation]) -> Machine:
    """Return a copy of the last checkpoint at or before `tick`, with the edits made exactly there."""
    machine = next(state for state in reversed(states) if state.tick <= tick).clone()
    apply_edits(machine, edits)
    return machine


def held_by(machines: Iterable[Machine], undo_log: Iterable[Transfer]) -> Iterator[Any]:
    """Yield the values in the frames of machines and in a undo log, once for each holder."""
    for machine in machines:
        for frame in machine.frames:
            yield from frame.values()
    for transfer in undo_log:
        yield from transfer.values()


def _drop_dead(frame: Frame) -> list[Any]:
    """Drop the slots that no later statement of the frame reads, and return their values.

    Slots set at its start are kept.
    """
    dropped = []
    last = last_uses(frame.code)
    for slot, written in enumerate(frame.code.definition):
        if written < 0:
            continue
        if written >= frame.pc or last[slot] < frame.pc:
            dropped.append(frame.slots[slot])
            frame.slots[slot] = UNSET if written >= frame.pc else EVICTED
    return dropped
