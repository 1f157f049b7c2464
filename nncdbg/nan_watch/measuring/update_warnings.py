"""Warnings about the updates of a training: they are too large, or the weight decay is too strong.

In a training that learns well, an update changes a weight matrix by about a thousandth of its norm, but small
networks may begin with updates of a tenth.  So only updates of a third of the norm count as too large, or
updates against the direction of the weights, as weight decay makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.text.lexemes import name_text
from nncdbg.nan_watch.measuring.latest_iterations import maker_of
from nncdbg.nan_watch.measuring.step_norms import StepNorms
from nncdbg.nan_watch.records import WatchFinding
from nncdbg.nan_watch.sites import site_of
from nncdbg.nan_watch.step_history import ParameterHistory, TrainingHistory

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
    for history in histories:
        code = norms.code_of(history)
        for parameter in history.parameters:
            if code is None or _rank(parameter.name, debugger) < 2:
                continue
            for verdict, holds in _RULES.items():
                rows = _longest(parameter, history.steps, holds)
                if rows:
                    yield _finding(verdict, parameter, history, rows, code, debugger)
                    break


def _is_decay(parameter: ParameterHistory, row: int) -> bool:
    lost = parameter.shrinkage[row]
    return lost >= max(SHRINKING, _AGAINST * parameter.ratios[row])


def _is_large(parameter: ParameterHistory, row: int) -> bool:
    return parameter.ratios[row] >= LARGE


_RULES = {DECAY: _is_decay, UPDATES: _is_large}


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


def _rank(name: str, debugger: Debugger) -> int:
    """Return the number of axes of a state; biases and gains, with one axis, may change fast."""
    state = next(each for each in debugger.program.states if each.value.name == name)
    return len(getattr(state.value.type, "shape", None) or ())


def _finding(
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
