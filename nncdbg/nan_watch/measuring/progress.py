"""Warnings about a training that ends without a NaN but learns nothing: by its rates, updates and losses.

The loss is the result that the run differentiates. Verdicts need at least 20 steps, those about chance 50:
shorter trainings show too little. The first rule that holds decides:

* The learning rate is negative, or 0 for at least 10 successive measured steps and a tenth of them.
* No update changes a parameter, or all updates are below a millionth of the norms and the loss is the same.
* The loss ends above its lowest level, by more than half of its fall and far more than its noise.
* A cross-entropy ends at ln(classes) or above, or an accuracy at 1 / classes or below.
* The first cross-entropy is far above ln(classes).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nncdbg.comparison.check_results import NOT_APPLICABLE, NOT_CHECKED, CheckResult
from nncdbg.engine.compilation.code import Code
from nncdbg.engine.compilation.effects import parameters_of
from nncdbg.engine.debugger import Debugger
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import Array, Graph, Literal, Node, Program, has_cotangent
from nncdbg.nan_watch.measuring.latest_iterations import maker_of
from nncdbg.nan_watch.measuring.step_norms import StepNorms
from nncdbg.nan_watch.records import Report, TrainingHistory, WatchFinding
from nncdbg.nan_watch.sites import site_of
from nncdbg.stats.series import TrackedSeries, weighted_mean
from nncdbg.text.lexemes import name_text

KIND = "training"
STEPS = 20
"""Least number of steps for a verdict."""

CHANCE_STEPS = 50
"""Least number of steps for a verdict about chance."""

_SERIES = 10
"""Least number of successive measured steps with a rate of 0."""

_SAMPLES = 100
"""Least number of samples of an accuracy."""

_TINY = 1e-6
"""Updates below this share of the norm are too small."""

_NOISE = 6.0
"""Least rise of a loss, as a multiple of its median deviation within a block of steps."""

_FIRST = 20.0
"""Least first cross-entropy that is too large, as a multiple of that of equal probabilities."""

_ACCURACY = re.compile(r"mean\(argmax\(%(?P<score>[^,()\s]+)(?:, ?(?P<axis>-?\d+))?\) == %[^()\s]+\)")
_CROSS_ENTROPIES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
_PASSING = ("Identity", "Cast", "Neg", "Squeeze", "Reshape")
"""Ops between a cross-entropy and the loss that keep its size."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    name: str
    value: str
    evidence: str
    hint: str
    actual: float
    limit: float


@dataclass(frozen=True, slots=True)
class _Loss:
    """The result that a run differentiates, and the graph that computes it; `sign` is -1 to maximize it."""

    name: str
    graph: Graph
    output: str
    sign: int


def progress_of(
    norms: StepNorms, report: Report, debugger: Debugger, *, explained: bool, trips: bool
) -> tuple[list[WatchFinding], list[CheckResult]]:
    """Return at most one finding for each run, and what is not judged; `trips` is whether the gate is on.

    `explained` is whether another warning explains why a training learns nothing.
    """
    found: list[WatchFinding] = []
    left = [] if report.training else [CheckResult(KIND, NOT_APPLICABLE, "the program has no training")]
    for history in report.training:
        code, steps = norms.code_of(history), history.steps[-1] + 1 if history.steps else 0
        if code is None or steps < STEPS:
            few = f"@{history.graph} ran {steps} steps, fewer than {STEPS}"
            left.append(CheckResult(KIND, NOT_CHECKED, few))
            continue
        course = _Course(norms, history, debugger, report.tracks)
        verdict = course.verdict(explained=explained)
        if verdict is not None:
            found.append(_finding(verdict, code, debugger, trips))
        elif course.loss is None:
            without = f"no result of @{history.graph} is a loss of a `backward` line"
            left.append(CheckResult(KIND, NOT_CHECKED, without))
    return found, left


@dataclass
class _Course:
    norms: StepNorms
    history: TrainingHistory
    debugger: Debugger
    tracks: Sequence[TrackedSeries]

    def verdict(self, *, explained: bool) -> _Verdict | None:
        rules = [self._rate, self._unchanged, self._rise]
        rules += [] if explained else [self._first, self._accuracy, self._chance]
        return next((found for found in (rule() for rule in rules) if found is not None), None)

    @cached_property
    def program(self) -> Program:
        return self.debugger.program

    @cached_property
    def loss(self) -> _Loss | None:
        found = loss_of(self.program, self.program.graphs[self.history.graph])
        return found if found is not None and found.name in self.history.results else None

    @cached_property
    def losses(self) -> Array:
        """The finite losses of all steps, or of the measured ones; empty if the loss is no result."""
        if self.loss is None:
            return np.empty(0)
        outputs, name = self.debugger.outputs, self.loss.name
        every = outputs.get(name) if outputs is not None else None
        measured = self.history.results[name]
        whole = every is not None and np.shape(every) == (self.history.steps[-1] + 1,)
        losses = np.asarray(every if whole else measured, np.float64)
        return self.loss.sign * losses[np.isfinite(losses)]

    # -- rules ---------------------------------------------------------------------------------------

    def _rate(self) -> _Verdict | None:
        steps = self.history.steps
        hint = "check the schedule of the learning rate"
        known = {
            each.rate for each in parameters_of(self.program).values() if each.graph == self.history.graph
        }
        constants = [rate for rate in known if isinstance(rate, float) and rate < 0]
        if constants and (self.loss is None or self.loss.sign > 0):
            rate = constants[0]
            return _Verdict("negative learning rate", "", f"the learning rate is {rate:.4g}", hint, rate, 0.0)
        for name, rates in self.history.rates.items():
            least = -1e-3 * max(map(abs, filter(math.isfinite, rates)), default=0.0)
            at = next((row for row, rate in enumerate(rates) if rate < least), None)
            if at is not None and (self.loss is None or self.loss.sign > 0):
                evidence = f"%{name_text(name)} is {rates[at]:.4g} in step {steps[at]}"
                return _Verdict("negative learning rate", name, evidence, hint, rates[at], 0.0)
            first, count = _longest([rate == 0 for rate in rates])
            if count >= max(_SERIES, len(rates) / 10):
                evidence = f"%{name_text(name)} is 0 from step {steps[first]} to {steps[first + count - 1]}"
                return _Verdict("learning rate of 0", name, evidence, hint, 0.0, 0.0)
        return None

    def _unchanged(self) -> _Verdict | None:
        parameters = self.history.parameters
        if not parameters or len(self.history.steps) < _SERIES:
            return None
        pairs = [pair for each in parameters for pair in zip(each.norms, each.ratios, strict=True)]
        if all(ratio == 0 or (norm == 0 and math.isnan(ratio)) for norm, ratio in pairs):
            evidence = (
                f"no update changes any of {len(parameters)} parameters in {len(self.history.steps)} steps"
            )
            hint = "check that the gradient reaches the parameters, and that the update uses it"
            return _Verdict("no progress", "", evidence, hint, 0.0, 0.0)
        ratios = [ratio for _, ratio in pairs if math.isfinite(ratio)]
        largest = max(ratios, default=math.inf)
        if largest < _TINY and len(self.losses) >= STEPS:
            levels, noise = _levels(self.losses)
            if levels[0] - levels[-1] <= max(1e-3 * abs(levels[0]), noise):
                evidence = f"the largest update is {largest:.3g} of its parameter, and the loss is the same"
                return _Verdict("no progress", "", evidence, "use a larger learning rate", largest, _TINY)
        return None

    def _rise(self) -> _Verdict | None:
        losses = self.losses
        if self.loss is None or len(losses) < STEPS:
            return None
        levels, noise = _levels(losses)
        best, end = int(np.argmin(levels)), levels[-1]
        start = max(float(np.median(losses[:3])), levels[0])
        rise, fall = end - levels[best], start - levels[best]
        doubled = levels[best] > 0 and end >= 2 * levels[best]
        above = end - start > _NOISE * noise and end - start > 0.1 * abs(start)
        if rise <= max(_NOISE * noise, 0.5 * fall) or not (doubled or above or levels[best] < 0):
            return None
        sign, name = self.loss.sign, self.loss.name
        evidence = (
            f"%{name_text(name)} ends at {sign * end:.4g}, after {sign * levels[best]:.4g} in "
            f"part {best + 1} of "
            f"{len(levels)} of the training (medians) and {sign * float(losses[0]):.4g} in the first step"
        )
        hint = "use a smaller learning rate, or check the sign of the update and of the loss"
        return _Verdict("loss diverges", name, evidence, hint, end, levels[best])

    def _accuracy(self) -> _Verdict | None:
        if self.history.steps[-1] + 1 < CHANCE_STEPS:
            return None
        lines = {line.name: line.expression for run in self.program.runs for line in run.tracks}
        for track in self.tracks:
            match = _ACCURACY.fullmatch(lines.get(track.name, "")) if track.part == "train" else None
            shape = self.norms.shape_of(self.history, match["score"]) if match else None
            if match is None or not shape or len(track.points) < CHANCE_STEPS:
                continue
            classes = shape[int(match["axis"] or -1)]
            latest = track.points[-len(track.points) // 5 :]
            right = weighted_mean([(each.number, each.samples) for each in latest])
            samples, chance = len(latest) * math.prod(shape) // classes, 1 / classes
            if samples >= _SAMPLES and right <= chance + 2 * math.sqrt(chance * (1 - chance) / samples):
                evidence = (
                    f"the track {track.name} is {100 * right:.3g} % in the last {len(latest)} steps; "
                    f"guessing one of {classes} classes gives {100 * chance:.3g} %"
                )
                hint = "check the labels, the sign of the loss, and that the update uses the gradient"
                return _Verdict("accuracy at chance", "", evidence, hint, right, chance)
        return None

    def _chance(self) -> _Verdict | None:
        if self.classes is None or len(self.losses) < CHANCE_STEPS:
            return None
        end, chance = _levels(self.losses)[0][-1], math.log(self.classes)
        if end < 0.98 * chance:
            return None
        assert self.loss is not None
        evidence = (
            f"%{name_text(self.loss.name)} ends at {end:.4g}; equal probabilities of {self.classes} classes "
            f"give ln {self.classes} = {chance:.4g}"
        )
        hint = "check the labels, the learning rate, and that the update uses the gradient"
        return _Verdict("loss at chance", self.loss.name, evidence, hint, float(end), chance)

    def _first(self) -> _Verdict | None:
        if self.classes is None or not len(self.losses):
            return None
        first, chance = float(self.losses[0]), math.log(self.classes)
        if first < _FIRST * chance:
            return None
        assert self.loss is not None
        evidence = (
            f"%{name_text(self.loss.name)} is {first:.4g} in the first step, {first / chance:.3g} times "
            f"ln {self.classes}, that of equal probabilities"
        )
        hint = "check the normalization, its variance, and the scale of the initial weights"
        return _Verdict("first loss too large", self.loss.name, evidence, hint, first, chance)

    @cached_property
    def classes(self) -> int | None:
        """The number of classes if the loss is the mean of a cross-entropy; None for other losses."""
        if self.loss is None or self.loss.sign < 0:
            return None
        scores = _scores_of(self.program, self.loss.graph, self.loss.output)
        shape = self.norms.shape_of(self.history, scores[0]) if scores is not None else None
        count = shape[scores[1]] if shape and scores is not None else 0
        return count if count > 1 else None


def _longest(holds: Sequence[bool]) -> tuple[int, int]:
    """Return the start and the length of the longest series of true elements."""
    best, start = (0, 0), 0
    for index, each in enumerate([*holds, False]):
        if not each:
            best = max(best, (start, index - start), key=lambda pair: pair[1])
            start = index + 1
    return best


def _levels(losses: Array) -> tuple[Array, float]:
    """Return the medians of up to 10 parts of a training, and the median deviation within a part."""
    parts = np.array_split(losses, max(2, min(10, len(losses) // 5)))
    levels = np.array([np.median(part) for part in parts])
    noise = np.median([np.median(np.abs(part - np.median(part))) for part in parts])
    return levels, float(noise)


def loss_of(program: Program, graph: Graph) -> _Loss | None:
    """Return the loss that a graph differentiates: the scalar result with a cotangent; None without one."""
    backwards = {f"@{line.name}": line for line in program.backwards}
    line = next((backwards[node.op] for node in graph.nodes if node.op in backwards), None)
    if line is None:
        return None
    forward = program.graphs[line.of]
    gradient = next(node for node in graph.nodes if node.called == line.name)
    call = next((node for node in graph.nodes if node.called == line.of), None)
    floats = [index for index, value in enumerate(forward.outputs) if has_cotangent(value.type)]
    for index, cotangent in zip(floats, gradient.inputs, strict=False):
        if call is None or cotangent is None or index >= len(call.outputs):
            continue
        data = cotangent.data if isinstance(cotangent, Literal) else 1.0
        sign = -1 if isinstance(data, (int, float)) and data < 0 else 1
        return _Loss(call.outputs[index].name, forward, forward.outputs[index].name, sign)
    return None


def _scores_of(program: Program, graph: Graph, name: str) -> tuple[str, int] | None:
    """Return the scores of a mean cross-entropy and the axis of their classes; None for another loss."""
    maker = _maker(graph, name)
    if maker is None:
        return None
    if (callee := maker.called) in program.graphs:
        called = program.graphs[str(callee)]
        index = [value.name for value in maker.outputs].index(name)
        return _scores_of(program, called, called.outputs[index].name)
    first = maker.inputs[0] if maker.inputs else None
    if not isinstance(first, str):
        return None
    if maker.op in _CROSS_ENTROPIES:
        return (first, 1) if maker.attributes.get("reduction", "mean") == "mean" else None
    if maker.op in _PASSING:
        return _scores_of(program, graph, first)
    return _log_softmax(graph, first) if maker.op == "ReduceMean" and len(maker.inputs) == 1 else None


def _log_softmax(graph: Graph, name: str, depth: int = 6) -> tuple[str, int] | None:
    """Return the result and the axis of a LogSoftmax, summed over its axis, that a value is made from."""
    maker = _maker(graph, name)
    if maker is None or not depth:
        return None
    if maker.op == "LogSoftmax":
        axis = maker.attributes.get("axis", -1)
        return (name, axis) if isinstance(axis, int) else None
    if maker.op not in (*_PASSING, "ReduceSum", "Mul", "GatherElements"):
        return None
    found = (_log_softmax(graph, each, depth - 1) for each in maker.inputs if isinstance(each, str))
    return next((each for each in found if each is not None), None)


def _maker(graph: Graph, name: str) -> Node | None:
    return next((node for node in graph.nodes if _makes(node, name)), None)


def _finding(verdict: _Verdict, code: Code, debugger: Debugger, trips: bool) -> WatchFinding:
    makers = [pc for pc in range(len(code.nodes)) if _makes(code.nodes[pc], verdict.value)]
    parameter = next(iter(parameters_of(debugger.program)), "")
    pc = makers[0] if makers else maker_of(parameter, code)[0]
    return WatchFinding(
        KIND,
        "birth",
        site_of(code, min(pc, len(code.nodes) - 1), verdict.value or parameter, debugger),
        evidence=f"{verdict.name}: {verdict.evidence}",
        hint=verdict.hint,
        actual=verdict.actual,
        threshold=verdict.limit,
        verdict=verdict.name,
        trips=trips,
    )


def _makes(node: Node, name: str) -> bool:
    return node.kind is not Kind.UPDATE and any(value.name == name for value in node.outputs)
