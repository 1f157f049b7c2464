"""Checkpoints of a machine at roughly logarithmic distances, and the bounds on the memory of its past.

The journal is bounded to `JOURNAL` entries, old values to `budget` bytes: the oldest are dropped, and
recomputed from the nearest checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from nncdbg.engine.compilation.code import UNSET
from nncdbg.engine.compilation.liveness import last_uses
from nncdbg.engine.execution.events import Event
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.linking import Allocation
from nncdbg.engine.execution.machine import Machine
from nncdbg.engine.time.deviations import Deviation, apply_edits

JOURNAL = 2048
"""Transfers of control that can be undone without a replay."""

SPACING = 1024
"""Ticks between checkpoints at the newest end of the timeline."""


class _Evicted:
    """The content of a slot after its value was dropped to stay within the budget."""

    def __repr__(self) -> str:
        return "<evicted>"


EVICTED = _Evicted()


class Checkpoints:
    """The checkpoints of one machine, and the budget of its old values in the buffers of `allocation`."""

    def __init__(self, machine: Machine, budget: int, allocation: Allocation) -> None:
        self.machine = machine
        self.budget = budget
        self.live_bytes = allocation.live_bytes
        self.retains = allocation.retains
        self.states: list[Machine] = [machine.clone()]
        self._threshold = budget
        machine.listeners.append(self._hear)

    def _hear(self, event: Event) -> None:
        machine = self.machine
        if len(machine.journal) > JOURNAL:
            for _ in range(JOURNAL // 4):
                machine.forget()
        if machine.tick - self.states[-1].tick >= SPACING:
            self.keep()

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
        """Whether old values use more memory than allowed."""
        return self.live_bytes() > self._threshold

    def enforce(self) -> None:
        """Drop old values until memory is within the budget, or only needed values are left."""
        self.keep()
        journal = self.machine.journal
        while journal and self.live_bytes() > self.budget:
            self.machine.forget()
        for frame in self.machine.frames:
            if self.live_bytes() <= self.budget:
                break
            _drop_dead(frame)
        # If all of it is needed, check again only after it has grown.
        self._threshold = max(self.budget, self.live_bytes() + self.live_bytes() // 8)


def begun(states: Sequence[Machine], tick: int, edits: Iterable[Deviation]) -> Machine:
    """Return a copy of the last checkpoint at or before `tick`, with the edits made exactly there."""
    machine = next(state for state in reversed(states) if state.tick <= tick).clone()
    apply_edits(machine, edits)
    return machine


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
