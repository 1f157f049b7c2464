"""Lines of a report about the norms over the steps of a training: gradients, updates and parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from nncdbg.engine.expression import spelled
from nncdbg.nan_watch.records import Report
from nncdbg.nan_watch.reports.bounds import visible
from nncdbg.nan_watch.step_history import ParameterHistory, TrainingHistory

_MOST = 6
"""Most parameters in a report: those with the largest gradients."""


def norm_lines(report: Report) -> Iterator[str]:
    """Yield a line for each training, and below it one for each parameter with a large gradient."""
    for history in report.training:
        if len(history.steps) < 2:
            continue
        yield _head(history)
        ranked = sorted(history.parameters, key=lambda each: -_largest(each.gradient_norms))
        yield from (_line(each, history.steps) for each in ranked[:_MOST])
        if len(ranked) > _MOST:
            yield f"  {len(ranked) - _MOST} more parameters: see --json"


def _head(history: TrainingHistory) -> str:
    results = [f"{visible(spelled(name))} {_from_to(values)}" for name, values in history.results.items()]
    named = f", {', '.join(results)}" if results else ""
    return f"steps {history.steps[0]} to {history.steps[-1]} of @{visible(history.graph)}{named}"


def _line(parameter: ParameterHistory, steps: Sequence[int]) -> str:
    name = visible(spelled(parameter.name))
    words = [f"norm {_from_to(parameter.norms)}", f"update / norm {_from_to(parameter.ratios)}"]
    norms = parameter.gradient_norms
    largest = _largest(norms)
    if largest > -math.inf:
        at = steps[norms.index(largest)]
        words.append(f"gradient norm {_from_to(norms)}, largest {largest:.4g} in step {at}")
    return f"  {name}: {', '.join(words)}"


def _largest(numbers: Sequence[float]) -> float:
    return max((number for number in numbers if math.isfinite(number)), default=-math.inf)


def _from_to(numbers: Sequence[float]) -> str:
    """Return `0.74 to 0.05`: the first and the last finite number."""
    finite = [number for number in numbers if math.isfinite(number)]
    return f"{finite[0]:.4g} to {finite[-1]:.4g}" if finite else "not finite"
