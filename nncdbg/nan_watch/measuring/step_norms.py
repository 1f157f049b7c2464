"""Norms of parameters, updates and gradients, and dead units, at some steps of a training; their warnings.

A step ends with the states and the frame of the step's graph in the undo log, so measuring changes nothing.

One dead unit of many is usual after ReLU.  So only a quarter of the units of a layer counts as a fault, over
enough steps and samples that a unit which is rarely active is not taken for a dead one.

In a training that learns well, an update changes a weight matrix by about a thousandth of its norm, but small
networks may begin with updates of a tenth.  So only updates of a third of the norm count as a fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.compilation.effects import LearnedState, parameters_of
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.diagnosis.units import (
    DeadUnits,
    TrainingUnits,
    UnitActivity,
    Visits,
    steps_in_journal,
)
from nncdbg.engine.execution.events import Event, Iterated
from nncdbg.engine.execution.undo_log import FramePopped
from nncdbg.nan_watch.measuring.latest_iterations import is_float_tensor, maker_of
from nncdbg.nan_watch.records import ActivationHistory, ParameterHistory, TrainingHistory, WatchFinding
from nncdbg.nan_watch.sites import calls_of, site_of
from nncdbg.text.lexemes import name_text

VERDICT = "dead units"

LATEST = 16
"""The latest measured steps in which a dead unit is flat for every sample."""

SHARE = 0.25
"""Least share of dead units in a layer for a warning."""

_FEWEST = 2
"""Least number of dead units."""

FEWEST_RECORDS = 10
"""Least number of measured steps."""

SAMPLES = 100
"""Least number of samples of each unit in these steps."""


def activation_history(activity: UnitActivity, steps: Sequence[int], debugger: Debugger) -> ActivationHistory:
    """Return the plain record of the units of an activation."""
    at, dead = activity.at, activity.dead_since(LATEST)
    return ActivationHistory(
        activity.name,
        at.code.graph.name or str(at.code.path[0]),
        debugger.loaded.line(at.code, at.pc),
        activity.last_alive.size,
        [activity.dead.get(step) for step in steps],
        dead.count if dead is not None else 0,
        dead.since if dead is not None else None,
    )


def dead_unit_warnings(activities: Iterator[UnitActivity], debugger: Debugger) -> Iterator[WatchFinding]:
    """Yield a finding, which trips no gate, for each activation with many dead units."""
    for each in activities:
        dead = each.dead_since(LATEST)
        if dead is None or dead.share < SHARE or dead.count < _FEWEST:
            continue
        if dead.steps >= FEWEST_RECORDS and dead.samples >= SAMPLES:
            yield _dead_units_finding(each, dead, debugger)


def _dead_units_finding(activity: UnitActivity, dead: DeadUnits, debugger: Debugger) -> WatchFinding:
    at = activity.at
    rectifies = activity.flat == (0.0,)
    result = " or ".join(f"{each:g}" for each in activity.flat)
    evidence = (
        f"{VERDICT}: {dead.count} of {dead.units} units of %{name_text(activity.name)} are {result} for all "
        f"{dead.samples:,} samples of the {dead.steps} measured steps since step {dead.since}"
    )
    if 0 < dead.never < dead.count:
        evidence += f"; {dead.never} of them since the first step"
    return WatchFinding(
        "dead",
        "birth",
        site_of(at.code, at.pc, activity.name, debugger),
        calls=calls_of(activity.calls, debugger),
        evidence=evidence,
        hint=_hint(rectifies, begins_dead=2 * dead.never >= dead.count),
        actual=dead.share,
        threshold=SHARE,
        verdict=VERDICT,
    )


def _hint(rectifies: bool, begins_dead: bool) -> str:
    other = "LeakyRelu, whose gradient is never 0" if rectifies else "a normalization before the activation"
    if not begins_dead:
        return f"use a smaller learning rate, or {other}"
    weights = "weights scaled by sqrt(2 / inputs) (He initialization)" if rectifies else "smaller weights"
    return f"initialize with a bias of 0 and {weights}, scale the data, or use {other}"


_EVERY = 20
"""First steps that are all measured."""

LAST = 16
"""Last steps that are all measured; the undo log has them."""

_STRIDE = 12
"""Every which step is measured after the first ones; twice as many when a history has `_MOST` steps."""

_MOST = 96
"""Most steps of a history, besides the last ones."""


@dataclass(slots=True)
class _Run:
    """A ``run`` line under way: its history, where its states are, and every which step is measured."""

    history: TrainingHistory
    code: Code
    states: list[tuple[int, int, LearnedState]]
    """(slot before the step, slot after it, state) of each parameter, as in `history.parameters`."""
    scalars: list[tuple[int, str]]
    """(slot, name) of each scalar float result."""
    units: TrainingUnits
    stride: int = _STRIDE


class StepNorms:
    """Observes the steps of a debugger at its start; `finished` returns the history of each ``run`` line."""

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger
        self._runs: dict[Code, _Run] = {}
        if debugger.program.runs and debugger.timeline.retains:
            debugger.control.listen(self._hear)

    def finished(self) -> list[TrainingHistory]:
        """Return the histories, completed by the last steps in the undo log."""
        for run in self._runs.values():
            known = {*run.history.steps}
            latest = [*islice(steps_in_journal(self._debugger.control.machine, run.code), LAST)]
            for step, slots, visits in reversed(latest):
                if step not in known:
                    self._measure(run, slots, visits)
            # The last steps are measured after the run.
            steps = run.history.steps
            _keep_rows(run.history, sorted(range(len(steps)), key=steps.__getitem__))
            run.history.activations = [
                activation_history(each, run.history.steps, self._debugger) for each in run.units.found
            ]
        return [run.history for run in self._runs.values()]

    def activities(self, history: TrainingHistory) -> Iterator[UnitActivity]:
        """Yield what is known of the units of a run, in the order of `history.activations`."""
        return next(run.units.found for run in self._runs.values() if run.history is history)

    def code_of(self, history: TrainingHistory) -> Code | None:
        """Return the code of the graph of a run, if a frame of it is in the undo log."""
        run = next(run for run in self._runs.values() if run.history is history)
        steps = steps_in_journal(self._debugger.control.machine, run.code)
        frames = (_frame(visits, history.graph) for _, _, visits in steps)
        return next((frame.code for frame in frames if frame is not None), None)

    def shape_of(self, history: TrainingHistory, name: str) -> tuple[int, ...] | None:
        """Return the shape of a value in the last step of a run; None if the undo log does not have it."""
        code = next(run.code for run in self._runs.values() if run.history is history)
        for _, _, visits in islice(steps_in_journal(self._debugger.control.machine, code), 1):
            for _, entry in visits:
                slot = entry.code.slot_of.get(name)
                if slot is not None and hasattr(entry.slots[slot], "shape"):
                    return tuple(entry.slots[slot].shape)
        return None

    def _hear(self, event: Event) -> None:
        if not isinstance(event, Iterated) or event.frame.code.epoch is None:
            return
        if self._debugger.timeline.replaying:
            return
        code, step = event.frame.code, int(event.before[1])
        run = self._runs.get(code)
        if run is None:
            run = self._runs[code] = self._begin(code, event.before)
        if step < _EVERY or step % run.stride == 0:
            found = next(steps_in_journal(self._debugger.control.machine, code), None)
            self._measure(run, event.before, [] if found is None else found[2])
            if len(run.history.steps) > _MOST:
                # Drop every second step after the first ones.
                run.stride *= 2
                steps = enumerate(run.history.steps)
                kept = [row for row, number in steps if number < _EVERY or number % run.stride == 0]
                _keep_rows(run.history, kept)

    def _begin(self, code: Code, slots: Sequence[Any]) -> _Run:
        learned = parameters_of(self._debugger.program)
        names = [value.name for value in code.graph.inputs[1:]]
        after = code.operands[len(code.nodes)]
        states = [
            (2 + index, after[index], learned[name])
            for index, name in enumerate(names)
            if name in learned and is_float_tensor(self._host(slots[2 + index]))
        ]
        graph = next(name for node in code.nodes if (name := node.called) is not None)
        outputs = code.graph.outputs[len(names) :]
        scalars = [
            (slot, value.name)
            for slot, value in zip(after[len(names) :], outputs, strict=True)
            if is_float_tensor(self._host(slots[slot])) and np.ndim(slots[slot]) == 0
        ]
        parameters = [ParameterHistory(each.name, each.gradient or "") for _, _, each in states]
        history = TrainingHistory(graph, [], {name: [] for _, name in scalars}, parameters)
        history.rates = {each.rate: [] for _, _, each in states if isinstance(each.rate, str)}
        units = TrainingUnits(self._debugger.program, self._debugger.backend)
        return _Run(history, code, states, scalars, units)

    def _measure(self, run: _Run, slots: Sequence[Any], visits: Visits) -> None:
        history, frame = run.history, _frame(visits, run.history.graph)
        history.steps.append(int(slots[1]))
        run.units.see(history.steps[-1], visits)
        for slot, name in run.scalars:
            history.results[name].append(_number(self._host(slots[slot])))
        for name, rates in history.rates.items():
            rates.append(_number(self._host(_in_frame(name, frame))))
        with np.errstate(all="ignore"):
            for parameter, (before, after, state) in zip(history.parameters, run.states, strict=True):
                gradient = _in_frame(state.gradient, frame)
                measured = _norms(*map(self._host, (slots[before], slots[after], gradient)))
                for series, number in zip(parameter.series, measured, strict=True):
                    series.append(number)

    def _host(self, content: Any) -> Any:
        return self._debugger.backend.to_host(content)


def _frame(visits: Visits, graph: str) -> FramePopped | None:
    """Return the frame of the graph that a run calls; it is beside those of evaluations and blocks."""
    frames = (entry for _, entry in visits if isinstance(entry, FramePopped) and entry.code.path == (graph,))
    return next(frames, None)


def _in_frame(name: str | None, frame: FramePopped | None) -> Any:
    slot = None if frame is None or name is None else frame.code.slot_of.get(name)
    return None if frame is None or slot is None else frame.slots[slot]


def _norms(old: Any, new: Any, gradient: Any) -> tuple[float, float, float, float]:
    """Return the norm of a parameter, the ratio of its update, the norm of its gradient, the shrinkage."""
    before, after, slope = _flat(old), _flat(new), _flat(gradient)
    steepness = math.nan if slope is None else _norm(slope)
    if before is None or after is None or before.size != after.size:
        return math.nan, math.nan, steepness, math.nan
    norm = _norm(before)
    if not norm:
        return norm, math.nan, steepness, math.nan
    change = after - before
    return norm, _norm(change) / norm, steepness, -float(before.dot(change)) / norm / norm


def _flat(content: Any) -> Any:
    """Return the elements as f32 or f64 in one axis; None for a content that is no tensor of numbers."""
    if not isinstance(content, (np.ndarray, np.generic)) or content.dtype.hasobject:
        return None
    array = content if content.dtype.char in "fd" else content.astype(np.float32)
    return array.reshape(-1)


def _norm(flat: Any) -> float:
    square = float(flat.dot(flat))
    if 1e-30 < square < math.inf or square == 0.0 and not flat.any():
        return math.sqrt(square)
    # NaN, or the squares of f32 overflow or underflow.
    return _number(np.linalg.norm(flat.astype(np.float64)))


def _number(content: Any) -> float:
    """Return a finite number, or NaN."""
    number = float(content) if content is not None and np.size(content) == 1 else math.nan
    return number if math.isfinite(number) else math.nan


def _keep_rows(history: TrainingHistory, rows: Sequence[int]) -> None:
    """Keep these rows of each series, in this order."""
    for series in history.series:
        series[:] = [series[row] for row in rows]


LARGE = 0.3
"""Least norm of an update that is too large, as a share of the norm of the parameter."""

SHRINKING = 0.05
"""Least share of a parameter that an update of a too strong weight decay takes away."""

_AGAINST = 0.7
"""Least share of such an update that points against the parameter."""

STEPS = 10
"""Least number of successive steps with such updates."""

DECAY, UPDATES = "weight decay too strong", "updates too large"

_HINTS = {
    DECAY: "use a smaller weight decay: the parameter loses 1 - learning rate * decay in each step",
    UPDATES: "use a smaller learning rate",
}


def update_warnings(
    norms: StepNorms, histories: Sequence[TrainingHistory], debugger: Debugger
) -> Iterator[WatchFinding]:
    """Yield a finding, which trips no gate, for each weight matrix with updates that are too large."""
    shapes = {each.value.name: getattr(each.value.type, "shape", None) for each in debugger.program.states}
    for history in histories:
        code = norms.code_of(history)
        for parameter in history.parameters:
            # Biases and gains, with one axis, may change fast.
            if code is None or len(shapes[parameter.name] or ()) < 2:
                continue
            for verdict, holds in _RULES.items():
                rows = _longest(parameter, history.steps, holds)
                if rows:
                    yield _update_finding(verdict, parameter, history, rows, code, debugger)
                    break


_RULES: dict[str, Callable[[ParameterHistory, int], bool]] = {
    DECAY: lambda each, row: each.shrinkage[row] >= max(SHRINKING, _AGAINST * each.ratios[row]),
    UPDATES: lambda each, row: each.ratios[row] >= LARGE,
}


def _longest(
    parameter: ParameterHistory, steps: Sequence[int], holds: Callable[[ParameterHistory, int], bool]
) -> list[int]:
    """Return the longest series of rows of successive steps for which a rule holds; empty if it is short."""
    longest: list[int] = []
    series: list[int] = []
    for row in range(len(steps)):
        if series and steps[row] != steps[series[-1]] + 1:
            series = []
        series = [*series, row] if holds(parameter, row) else []
        longest = max(longest, series, key=len)
    return longest if len(longest) >= STEPS else []


def _update_finding(
    verdict: str,
    parameter: ParameterHistory,
    history: TrainingHistory,
    rows: list[int],
    code: Code,
    debugger: Debugger,
) -> WatchFinding:
    name = parameter.name
    ratios = [parameter.ratios[row] for row in rows]
    first, last = history.steps[rows[0]], history.steps[rows[-1]]
    did = "shrank" if verdict == DECAY else "changed"
    evidence = (
        f"{verdict}: from step {first} to {last}, each update {did} %{name_text(name)} by "
        f"{100 * min(ratios):.3g} to "
        f"{100 * max(ratios):.3g} % of its norm, which went from {parameter.norms[rows[0]]:.4g} to "
        f"{parameter.norms[rows[-1]]:.4g}; 0.1 % is usual"
    )
    site = site_of(code, maker_of(name, code)[0], name, debugger)
    return WatchFinding(
        "update",
        "birth",
        site,
        evidence=evidence,
        hint=_HINTS[verdict],
        actual=float(np.median(ratios)),
        threshold=SHRINKING if verdict == DECAY else LARGE,
        count=len(rows),
        verdict=verdict,
    )
