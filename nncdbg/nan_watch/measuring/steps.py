"""End the watch of a training after the first step with a NaN or Inf in its states or results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.diagnosis.sightings import Sighting, StatementVisit
from nncdbg.engine.execution.events import Event, Iterated, Popped
from nncdbg.nan_watch.records import TrainingStep

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.diagnosis.trail import Trail
    from nncdbg.nan_watch.measuring.gates import Gates


class FirstBadStep:
    """Pauses a training after its first bad step: one with a finding of a gate that influences later steps.

    All later values follow from such a step.  A NaN that a step drops, behind a mask for example, ends no
    training.
    """

    def __init__(self, debugger: Debugger, trail: Trail, gates: Gates) -> None:
        self.step: TrainingStep | None = None
        """The bad step, after the pause."""
        self._reached: set[int] = set()
        """The origins that the results of this step depend on so far."""
        self._debugger = debugger
        self._trail = trail
        self._gates = gates
        if debugger.program.runs:
            debugger.control.listen(self._hear)

    def _hear(self, event: Event) -> None:
        if self._trail.unmarked:
            return
        if isinstance(event, Popped) and self._is_called_by_run(event.frame.code):
            # The loop of the run collects declared numbers only.
            self._reached.update(self._trail.reach(event.frame))
        if not isinstance(event, Iterated) or event.frame.code.epoch is None:
            return
        reached = {*self._reached, *self._trail.reach(event.frame, event.before)}
        self._reached.clear()
        if any(map(self._is_gated, reached)):
            self.step = step_of(event.frame.code, event.frame.iteration - 1)
            self._debugger.pause()

    def _is_called_by_run(self, code: Code) -> bool:
        """Whether a block that has just returned is the graph of a ``run`` or ``evaluate`` line."""
        if code.parent is not None:
            return False
        caller = self._debugger.control.stack[-1].code
        while caller.parent is not None:
            caller = caller.parent
        return caller is self._debugger.loaded.codes[0]

    def _is_gated(self, number: int) -> bool:
        sighting = self._trail.sighting(number)
        return sighting.born and self._gates.kind_of(sighting) in self._gates.kinds

    def note(self) -> str:
        """Return the remark of a report that says why the watch ended."""
        return f"the watch ended after {self.step}: later steps use its values"


def step_of(code: Code, iteration: int) -> TrainingStep:
    """Return the step of a run in this iteration of its block."""
    return TrainingStep(iteration, iteration // code.epoch if code.epoch else None)


def step_at(visit: StatementVisit | Sighting) -> TrainingStep | None:
    """Return the training step of a visit; None outside of a run."""
    code: Code | None = (*visit.calls, visit.statement)[0].code
    while code is not None and code.epoch is None:
        code = code.parent
    return step_of(code, visit.iteration[0]) if code is not None and visit.iteration else None
