"""The course of a training in reports: norms of gradients, updates and parameters, and dead units."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from nncdbg.engine.expression import spelled
from nncdbg.engine.tracking.series import TrackedSeries
from nncdbg.nan_watch.records import Report
from nncdbg.nan_watch.reports.bounds import left_out, visible
from nncdbg.nan_watch.step_history import ActivationHistory, ParameterHistory, TrainingHistory
from nncdbg.presentation.sparkline import sparkline

_MOST = 6
"""Most parameters in a report, those with the largest gradients; and most activations with dead units."""

_WIDTH = 8
"""Bars of a series."""

COLUMNS = ("norm", "update / norm", "gradient norm")
"""The series of a parameter."""


def norm_lines(report: Report, *, bars: bool = True) -> Iterator[str]:
    """Yield a line for each training, for each parameter with a large gradient, and about dead units."""
    for history in courses(report):
        yield head(history, bars=bars)
        for name, series in parameter_rows(history, bars=bars):
            words = [f"{label} {each}" for label, each in zip(COLUMNS, series, strict=True) if each]
            yield f"  {name}: {', '.join(words)}"
        yield from (f"  {words}" for words in remaining(history))
    yield from (_track(each, bars=bars) for each in report.tracks)


def _track(series: TrackedSeries, *, bars: bool) -> str:
    """Return `track acc (train) 0.75 to 0.5 █▄▁`."""
    head = f"track {visible(series.name)} ({series.part})"
    return f"{head} {_from_to(series.steps, series.numbers, bars)}" if series.steps else f"{head}: no values"


def courses(report: Report) -> list[TrainingHistory]:
    """Return the trainings with more than one measured step."""
    return [each for each in report.training if len(each.steps) > 1]


def head(history: TrainingHistory, *, bars: bool = True) -> str:
    """Return `steps 0 to 299 of @train, %l 0.7078 to 0.1327 █▄▁`."""
    results = [
        f"{visible(spelled(name))} {_from_to(history.steps, values, bars)}"
        for name, values in history.results.items()
    ]
    named = f", {', '.join(results)}" if results else ""
    return f"steps {history.steps[0]} to {history.steps[-1]} of @{visible(history.graph)}{named}"


def parameter_rows(
    history: TrainingHistory, *, bars: bool = True
) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield the name of each parameter with a large gradient, and its series as `COLUMNS` ("" if unknown)."""
    for each in _ranked(history)[:_MOST]:
        steps, norms = history.steps, each.gradient_norms
        gradient, largest = "", _largest(norms)
        if largest > -math.inf:
            at = steps[norms.index(largest)]
            gradient = f"{_from_to(steps, norms, bars)}, largest {largest:.4g} in step {at}"
        series = _from_to(steps, each.norms, bars), _from_to(steps, each.ratios, bars), gradient
        yield visible(spelled(each.name)), series


def remaining(history: TrainingHistory) -> Iterator[str]:
    """Yield sentences about activations with dead units, and about parameters that are not shown."""
    more = len(history.parameters) - _MOST
    if more > 0:
        yield f"{more} more parameters: see --json"
    dead = [each for each in history.activations if each.dead_now]
    yield from map(_dead, dead[:_MOST])
    yield from left_out(dead, _MOST, "activations with dead units")


def _dead(each: ActivationHistory) -> str:
    place = f"@{visible(each.graph)}" + (f", line {each.line}" if each.line is not None else "")
    count = f"{each.dead_now} of {each.units} units dead since step {each.since}"
    return f"{visible(spelled(each.name))} in {place}: {count}"


def _ranked(history: TrainingHistory) -> list[ParameterHistory]:
    return sorted(history.parameters, key=lambda each: -_largest(each.gradient_norms))


def _largest(numbers: Sequence[float]) -> float:
    return max((number for number in numbers if math.isfinite(number)), default=-math.inf)


def _from_to(steps: Sequence[int], numbers: Sequence[float], bars: bool) -> str:
    """Return `0.74 to 0.05 █▄▁`: the first and the last finite number, and all of them as bars."""
    finite = [number for number in numbers if math.isfinite(number)]
    if not finite:
        return "not finite"
    words = f"{finite[0]:.4g} to {finite[-1]:.4g}"
    return f"{words} {sparkline(steps, numbers, _WIDTH)}" if bars else words
