"""Classify a NaN in a training: bad data, a high learning rate, a large loss scale, or a faulty op.

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

from dataclasses import dataclass

from nncdbg.engine.debugger import Debugger
from nncdbg.engine.diagnosis.sightings import ENTRANCE, Sighting
from nncdbg.engine.text.lexemes import name_text
from nncdbg.nan_watch.measuring.latest_iterations import CarriedCourse, LatestIterations, data_of, loop_of
from nncdbg.nan_watch.measuring.loss_scale import loss_scale_of
from nncdbg.nan_watch.measuring.outliers import Outlier, outlier_in

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

    def verdict(self, sighting: Sighting) -> TrainingVerdict | None:
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

    def _history(self, sighting: Sighting) -> LatestIterations | None:
        code = loop_of(sighting)
        if code is None or not self._debugger.timeline.retains:
            return None
        key = (code, sighting.iteration)
        if key not in self._histories:
            self._histories[key] = LatestIterations(self._debugger, code, sighting.tick)
        return self._histories[key]

    def _of_training(self, history: LatestIterations, sighting: Sighting) -> TrainingVerdict | None:
        learned = [course for course in history.courses if course.learns]
        outlier = outlier_in(history)
        if outlier is not None and not any(_has_diverged(each.until(outlier.at)) for each in learned):
            return _bad_input(outlier, history)
        diverged = max(filter(_has_diverged, learned), key=_divergence, default=None)
        if diverged is not None:
            return _learning_rate(diverged, history)
        scale = self._loss_scale(sighting)
        return scale if scale is not None else _op(learned, history)

    def _of_loop(self, history: LatestIterations, sighting: Sighting) -> TrainingVerdict | None:
        courses = [course for course in history.courses if len(course.norms) > 1]
        grown = max(filter(_is_grown, courses), key=lambda each: (each.learns, each.growth), default=None)
        if grown is not None:
            return _learning_rate(grown, history) if grown.learns else TrainingVerdict(GROWTH, _grew(grown))
        scale = self._loss_scale(sighting)
        return scale if scale is not None else _op(courses, history) if courses else None

    def _loss_scale(self, sighting: Sighting) -> TrainingVerdict | None:
        found = loss_scale_of(sighting, self._debugger)
        if found is None:
            return None
        dtype, factor = found
        evidence = f"{LOSS_SCALE}: {dtype} cannot represent its factor {factor}"
        return TrainingVerdict(LOSS_SCALE, evidence, "use a smaller or a dynamic loss scale")


def _is_grown(course: CarriedCourse) -> bool:
    """Return whether a norm shows a trend; one iteration is enough for a jump."""
    return course.growth >= (_GROWN if len(course.norms) > 2 else _JUMP)


def _has_diverged(course: CarriedCourse) -> bool:
    """Return whether the updates of a parameter were too large, and the parameter is."""
    return course.gain >= _LARGE and (course.growth >= _GROWN or max(course.ratios, default=0.0) >= _LEAP)


def _divergence(course: CarriedCourse) -> tuple[float, float]:
    return course.growth, max(course.ratios, default=0.0)


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
