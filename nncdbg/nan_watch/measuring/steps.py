"""Steps of a training that end or disturb it: the first bad step, a wrong index, a reset of a state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.diagnosis.finding_records import ENTRANCE, FindingRecord, StatementVisit
from nncdbg.engine.execution.events import Event, Iterated, Popped
from nncdbg.engine.execution.findings import STATE_RESET
from nncdbg.nan_watch.measuring.latest_iterations import LatestIterations
from nncdbg.nan_watch.measuring.training import BAD_INPUT
from nncdbg.nan_watch.records import FindingUse, TrainingStep, WatchFinding
from nncdbg.nan_watch.sites import calls_of, site_of
from nncdbg.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.engine.diagnosis.nan_tracker import NanTracker
    from nncdbg.engine.stopping.stops import Stop
    from nncdbg.nan_watch.measuring.gates import Gates


class FirstBadStep:
    """Pauses a training after its first bad step: one with a finding of a gate that influences later steps.

    All later values follow from such a step.  A NaN that a step drops, behind a mask for example, ends no
    training.
    """

    def __init__(self, debugger: Debugger, trail: NanTracker, gates: Gates) -> None:
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
        sightings = map(self._trail.sighting, reached)
        if any(each.born and self._gates.kind_of(each) in self._gates.kinds for each in sightings):
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


def step_of(code: Code, iteration: int) -> TrainingStep:
    """Return the step of a run in this iteration of its block."""
    return TrainingStep(iteration, iteration // code.epoch if code.epoch else None)


def step_at(visit: StatementVisit | FindingRecord) -> TrainingStep | None:
    """Return the training step of a visit; None outside of a run."""
    code: Code | None = (*visit.calls, visit.statement)[0].code
    while code is not None and code.epoch is None:
        code = code.parent
    return step_of(code, visit.iteration[0]) if code is not None and visit.iteration else None


def index_fault(debugger: Debugger, stop: Stop) -> WatchFinding | None:
    """Return the finding for a statement that failed because an index in its batch is out of bounds.

    None if the statement failed for another reason, or reads no batch of integers.
    """
    error = stop.error.__cause__ if stop.error is not None else None
    frames = debugger.control.machine.frames
    run = next((frame for frame in frames if frame.code.epoch is not None), None)
    if not isinstance(error, IndexError) or run is None:
        return None
    assert stop.frame is not None
    at = Statement(stop.frame.code, stop.statement_in(stop.frame)[0])
    failed = StatementVisit.of(at, frames)
    code, slots = failed.statement.code, frames[-1].slots
    read = {id(value) for value in code.operands_of(failed.statement.pc, slots)}
    history = LatestIterations(debugger, run.code, debugger.timeline.tick)
    for name, data, batches in history.batches():
        latest = batches[-1]
        used = {id(run.slots[slot]) for slot, each in enumerate(run.code.names) if each == name}
        if latest is None or latest.dtype.kind not in "iu" or not read & used:
            continue
        return _finding(debugger, failed, name, data, batches, str(error))
    return None


def _finding(
    debugger: Debugger, failed: StatementVisit, name: str, data: Any, batches: list[Any], error: str
) -> WatchFinding:
    before = [each for each in batches[:-1] if each is not None and each.size]
    low = min((int(each.min()) for each in before), default=0)
    high = max((int(each.max()) for each in before), default=0)
    # The index that needs the largest axis; negative ones count from its end.
    wrong = max(
        int(batches[-1].max()), int(batches[-1].min()), key=lambda index: index + 1 if index >= 0 else -index
    )
    place = [int(axis[0]) for axis in np.nonzero(np.asarray(data) == wrong)]
    earlier = f", and earlier steps used {low} to {high}" if before else ""
    driver = failed.calls[0].code.parent
    assert driver is not None
    at = failed.statement
    site = site_of(at.code, at.pc, at.code.nodes[at.pc].outputs[0].name, debugger)
    step = step_at(failed)
    return WatchFinding(
        "integer",
        "propagated",
        site_of(driver, ENTRANCE, name, debugger),
        cause=BAD_INPUT,
        evidence=f"input %{name_text(name)} has {wrong} at {place}{earlier}; {site.op} failed: {error}",
        hint="check the labels or tokens in the data, and the number of classes or rows of the table",
        used=FindingUse(site, failed.iteration, calls_of(failed.calls, debugger), step),
        trips=True,
        verdict=BAD_INPUT,
    )


_HINT = (
    "keep the state of the optimizer when the model or batch changes; if the reset is intended, as in a warm "
    "restart, leave out the gate"
)


class ResetGate:
    """Collects the resets in the run of a debugger; `findings` has one for each state and statement.

    Raises UsageError for an allocator that does not keep the old states.
    """

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger
        self._found: dict[tuple[Code, int, str], WatchFinding] = {}
        debugger.catch(STATE_RESET)

    @property
    def findings(self) -> list[WatchFinding]:
        return [*self._found.values()]

    def run(self, move: Callable[[], Stop]) -> Stop:
        """Run the program until something other than a reset stops it."""
        stop = move()
        while stop.finding is not None and stop.finding.kind == STATE_RESET:
            self._note(stop)
            stop = move()
        return stop

    def _note(self, stop: Stop) -> None:
        finding = stop.finding
        assert finding is not None
        at = finding.binding
        state = at.code.nodes[at.pc].outputs[finding.output or 0].name
        key = at.code, at.pc, state
        known = self._found.get(key)
        if known is not None:
            self._found[key] = replace(known, count=known.count + 1)
            return
        stack = self._debugger.control.stack
        loops = [frame for frame in stack if frame.is_loop]
        runs = [frame for frame in loops if frame.code.epoch is not None]
        calls = [Statement(frame.code, frame.pc) for frame in stack[:-1]]
        self._found[key] = WatchFinding(
            STATE_RESET,
            "birth",
            site_of(at.code, at.pc, state, self._debugger),
            iteration=tuple(frame.iteration for frame in loops),
            at_step=step_of(runs[0].code, runs[0].iteration) if runs else None,
            calls=calls_of(calls[1:], self._debugger),
            evidence=finding.detail,
            hint=_HINT,
            trips=True,
        )
