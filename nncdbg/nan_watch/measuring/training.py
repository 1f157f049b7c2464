"""Classify a NaN in a training, and find the steps that end or disturb it.

A NaN comes from bad data, a high learning rate, a large loss scale, or a faulty op.

The journal of the run holds the carried values of a loop, so this costs nothing until a NaN originates.  For
the steps of a ``run`` line, these are the states of the training.  The first rule that holds decides:

* The input is bad if it has the NaN or Inf, or an outlier was used while the parameters were still calm.
* The learning rate is too high if the norm of a parameter grew steadily, or an update was larger than the
  parameter, and the parameter is large now.
* The loss scale is too large if an f16 or f8 result in a gradient is infinite.
* Else the op itself is at fault.

In another loop, a carried value that grew is a case of a high learning rate if the loop adds something to it;
otherwise the value just grew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.dtypes import FLOATS, NUMPY
from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.diagnosis.finding_records import ENTRANCE, FindingRecord, StatementVisit
from nncdbg.engine.execution.events import Event, Iterated, Popped
from nncdbg.engine.execution.findings import STATE_RESET
from nncdbg.nan_watch.measuring.latest_iterations import (
    CarriedCourse,
    LatestIterations,
    data_of,
    is_float_tensor,
    loop_of,
)
from nncdbg.nan_watch.records import FindingUse, TrainingStep, WatchFinding
from nncdbg.nan_watch.sites import calls_of, site_of
from nncdbg.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.engine.diagnosis.nan_tracker import NanTracker
    from nncdbg.engine.stopping.stops import Stop
    from nncdbg.nan_watch.measuring.gates import Gates

_LEAST = 64.0
"""Least factor that counts as a loss scale."""


def loss_scale_of(sighting: FindingRecord, debugger: Debugger) -> tuple[str, str] | None:
    """Return (element type, factor) of an infinite narrow result with a loss scale; None without one.

    The cotangent of a call of a gradient is a loss scale.  A factor in a statement must be a power of two.
    """
    if sighting.kind != "inf":
        return None
    code, pc = sighting.statement.code, sighting.statement.pc
    type_ = code.types.get(sighting.value) if sighting.value in code.slot_of else None
    dtype = getattr(type_, "dtype", "")
    if dtype not in FLOATS or NUMPY[dtype].itemsize > 2:
        return None
    for name, factor in (*_factors(code, pc), *_cotangents(sighting, debugger)):
        return dtype, f"%{name_text(name)} = {factor:g}" if name else f"{factor:g}"
    return None


def _cotangents(sighting: FindingRecord, debugger: Debugger) -> Iterator[tuple[str, float]]:
    """Return the loss scales that the calls around a statement give to gradients, the innermost first."""
    gradients = {f"@{line.name}" for line in debugger.program.backwards}
    states = {state.value.name for state in debugger.program.states}
    for call in reversed(sighting.calls):
        if call.code.nodes[call.pc].op not in gradients:
            continue
        for slot in call.code.operands[call.pc]:
            factor = _scalar(_content(debugger, call.code, slot))
            if factor is not None and factor >= _LEAST:
                # A number in the call has a generated name.
                name = call.code.names[slot]
                yield name if name in states else "", factor


def _content(debugger: Debugger, code: Code, slot: int) -> Any:
    """Return a constant of a block, else what its latest frame has in a slot."""
    machine = debugger.control.machine
    for frame in (*reversed(machine.frames), *machine.finished()):
        if frame.code is code:
            return debugger.backend.to_host(frame.slots[slot])
    return code.template[slot]


def _factors(code: Code, pc: int) -> Iterator[tuple[str, float]]:
    """Return the large powers of two that a statement's operands were multiplied by, nearest first."""
    waiting, seen = [pc], {pc}
    while waiting:
        current = waiting.pop(0)
        for slot in code.operands[current]:
            if code.nodes[current].op == "Mul":
                factor = _scalar(code.template[slot])
                if factor is not None and factor >= _LEAST and math.frexp(factor)[0] == 0.5:
                    yield code.names[slot], factor
            before = code.definition[slot]
            if before >= 0 and before not in seen:
                seen.add(before)
                waiting.append(before)


def _scalar(content: Any) -> float | None:
    """Return the magnitude of a tensor of one number; None for other contents."""
    if not isinstance(content, (np.ndarray, np.generic)) or content.size != 1 or content.dtype.hasobject:
        return None
    return abs(float(content.reshape(())))


_FAR = 1e3
"""Least largest element of an outlier, as a multiple of the median of the samples."""

_FEWEST = 4
"""Least number of samples for a median."""


@dataclass(frozen=True, slots=True)
class Outlier:
    """A sample whose largest element is `largest`, used first in the iteration `at` of the history.

    `index` is its place along the first axis of the data; `median` is that of the samples of the batches.
    """

    name: str
    index: int
    at: int
    largest: float
    median: float


def outlier_in(history: LatestIterations) -> Outlier | None:
    """Return the first outlier in the latest batches of a training; None if there is none."""
    found = [
        _outlier(name, data, [_sizes(batch, data) for batch in batches])
        for name, data, batches in history.batches()
        if is_float_tensor(data)
    ]
    return min((each for each in found if each is not None), key=lambda each: each.at, default=None)


def _outlier(name: str, data: Any, sizes: Sequence[Any]) -> Outlier | None:
    """Return the first outlier among the batches with these sizes of their samples."""
    every = np.concatenate(sizes)
    every = every[np.isfinite(every)]
    median = float(np.median(every)) if len(every) >= _FEWEST else 0.0
    for at, each in enumerate(sizes):
        largest = float(np.max(each, initial=0.0))
        if median and _FAR * median <= largest < np.inf:
            index = int(np.argmax(_sizes(data, data) == largest))
            return Outlier(name, index, at, largest, median)
    return None


def _sizes(batch: Any, data: Any) -> Any:
    """Return f64[samples]: the largest magnitude of each sample of a batch; empty for a lost batch."""
    if batch is None or not np.size(data):
        return np.zeros(0)
    one = np.ndim(batch) < np.ndim(data)
    rows = np.asarray(batch, np.float64).reshape(1 if one else len(batch), -1)
    return np.abs(rows).max(axis=1, initial=0.0)


_GROWN = 10.0
"""Least growth factor of a norm over the latest iterations for a trend."""

_JUMP = 1e3
"""Least growth factor of a norm in a single iteration of a loop that is no training."""

_LARGE = 4.0
"""Least gain of a parameter that diverged; smaller ones may grow from a small start."""

_LEAP = 1.0
"""Least norm of an update that is too large, as a multiple of the norm of the parameter."""

LEARNING_RATE, LOSS_SCALE, OP = "learning rate too high", "loss scale too large", "faulty op"
BAD_INPUT, GROWTH = "bad input", "growth"


@dataclass(frozen=True, slots=True)
class TrainingVerdict:
    """`name` is one of the five; `evidence` is the observation, `hint` the fix ("" for that of the op)."""

    name: str
    evidence: str = ""
    hint: str = ""


class TrainingJudge:
    """Classifies the findings of one run by the history of their loops."""

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger
        self._histories: dict[object, LatestIterations] = {}

    def verdict(self, sighting: FindingRecord) -> TrainingVerdict | None:
        """Return the verdict on an origin in a loop; None without a loop or a history."""
        if sighting.statement.pc == ENTRANCE:
            is_data = sighting.value in data_of(sighting.statement.code)
            return TrainingVerdict(BAD_INPUT) if is_data else None
        if not sighting.iteration or sighting.role != "birth" or sighting.kind not in ("nan", "inf"):
            return None
        history = self._history(sighting)
        if history is None:
            return None
        judge = self._of_training if history.is_training else self._of_loop
        return judge(history, sighting)

    def _history(self, sighting: FindingRecord) -> LatestIterations | None:
        code = loop_of(sighting)
        if code is None or not self._debugger.timeline.retains:
            return None
        key = (code, sighting.iteration)
        if key not in self._histories:
            self._histories[key] = LatestIterations(self._debugger, code, sighting.tick)
        return self._histories[key]

    def _of_training(self, history: LatestIterations, sighting: FindingRecord) -> TrainingVerdict | None:
        learned = [course for course in history.courses if course.learns]
        outlier = outlier_in(history)
        if outlier is not None and not any(_has_diverged(each.until(outlier.at)) for each in learned):
            return _bad_input(outlier, history)
        diverged = max(
            filter(_has_diverged, learned),
            key=lambda each: (each.growth, max(each.ratios, default=0.0)),
            default=None,
        )
        if diverged is not None:
            return _learning_rate(diverged, history)
        scale = self._loss_scale(sighting)
        return scale if scale is not None else _op(learned, history)

    def _of_loop(self, history: LatestIterations, sighting: FindingRecord) -> TrainingVerdict | None:
        courses = [course for course in history.courses if len(course.norms) > 1]
        # One iteration is enough for a jump.
        trends = [each for each in courses if each.growth >= (_GROWN if len(each.norms) > 2 else _JUMP)]
        grown = max(trends, key=lambda each: (each.learns, each.growth), default=None)
        if grown is not None:
            return _learning_rate(grown, history) if grown.learns else TrainingVerdict(GROWTH, _grew(grown))
        scale = self._loss_scale(sighting)
        return scale if scale is not None else _op(courses, history) if courses else None

    def _loss_scale(self, sighting: FindingRecord) -> TrainingVerdict | None:
        found = loss_scale_of(sighting, self._debugger)
        if found is None:
            return None
        dtype, factor = found
        evidence = f"{LOSS_SCALE}: {dtype} cannot represent its factor {factor}"
        return TrainingVerdict(LOSS_SCALE, evidence, "use a smaller or a dynamic loss scale")


def _has_diverged(course: CarriedCourse) -> bool:
    """Return whether the updates of a parameter were too large, and the parameter is."""
    return course.gain >= _LARGE and (course.growth >= _GROWN or max(course.ratios, default=0.0) >= _LEAP)


def _learning_rate(course: CarriedCourse, history: LatestIterations) -> TrainingVerdict:
    hint = "use a smaller learning rate, or clip the gradient"
    if course.growth >= _GROWN:
        return TrainingVerdict(LEARNING_RATE, f"{LEARNING_RATE}: {_grew(course)}", hint)
    ratio = max(course.ratios)
    step = history.first_step + course.ratios.index(ratio)
    evidence = (
        f"{LEARNING_RATE}: the update of step {step} changed %{name_text(course.name)} by "
        f"{ratio:.3g} times its norm"
    )
    return TrainingVerdict(LEARNING_RATE, evidence, hint)


def _grew(course: CarriedCourse) -> str:
    count = len(course.norms) - 1
    first, last = course.norms[0], course.norms[-1]
    grew = f"the norm of %{name_text(course.name)} grew from {first:.4g} to {last:.4g} over the previous "
    if count == 1:
        return f"{grew}iteration"
    return f"{grew}{count} iterations, by {course.growth ** (1 / count):.3g} times each"


def _bad_input(outlier: Outlier, history: LatestIterations) -> TrainingVerdict:
    evidence = (
        f"{BAD_INPUT}: the sample at index {outlier.index} of axis 0 of "
        f"%{name_text(outlier.name)}, used in step "
        f"{history.first_step + outlier.at}, has {outlier.largest:.4g}; the median of the largest elements "
        f"of the samples is {outlier.median:.4g}"
    )
    return TrainingVerdict(BAD_INPUT, evidence, "check the source of this sample, or clip the data")


def _op(courses: list[CarriedCourse], history: LatestIterations) -> TrainingVerdict | None:
    if not history.previous:
        return TrainingVerdict(OP, f"{OP}: no update has changed the parameters yet")
    course = max(courses, key=lambda each: each.norms[-1], default=None)
    if course is None:
        return None
    low, high = min(course.norms), max(course.norms)
    if high <= _GROWN * low:
        norms = f"the norm of %{name_text(course.name)} was {low:.4g} to {high:.4g}"
        return TrainingVerdict(OP, f"{OP}: the carried values were steady before ({norms})")
    if not history.is_training:
        return None
    first, last = course.norms[0], course.norms[-1]
    norms = f"the norm of %{name_text(course.name)} went from {first:.4g} to {last:.4g}"
    return TrainingVerdict(OP, f"{OP}: the parameters did not diverge before ({norms})")


# -- steps: the first bad one, a wrong index, a reset of a state --------------------------------------


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
