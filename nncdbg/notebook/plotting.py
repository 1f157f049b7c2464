"""The plot of a run: norms and extremes of its statements, with all phases on one axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import cycle, groupby
from typing import Any

from nncdbg.errors import UsageError
from nncdbg.expression import spelled
from nncdbg.ir.records import Program
from nncdbg.target.statistics import StatementStatistics, statement_statistics

_COLORS = ("#3a78d0", "#a67814", "#2e8b46", "#a055b4", "#14878f")
"""Colors of the phases, in their order."""

_NOT_FINITE = "#d03a3a"


def plot(program: Program, inputs: Mapping[str, Any], axes: Any = None) -> Any:
    """Run a program, and plot norm and largest absolute value of each float result over its statements.

    Each phase has a color.  A red line marks the first statement with NaN or Inf, and red areas all others.
    Return matplotlib's axes, which are new if none are given.  Raises UsageError without matplotlib, RunError
    if the program fails.
    """
    try:
        pyplot = import_module("matplotlib.pyplot")
    except ModuleNotFoundError:
        raise UsageError(
            "a plot needs the package matplotlib, which is not installed", hint="pip install nncdbg[plots]"
        ) from None
    found = statement_statistics(program, inputs)
    if axes is None:
        axes = pyplot.subplots(figsize=(10, 4), layout="constrained")[1]
    colors = cycle(_COLORS)
    for phase, run in groupby(found, lambda each: each.phase):
        _plot_phase(axes, phase, [*run], next(colors))
    _mark_not_finite(axes, found)
    axes.set_yscale("log")
    axes.set_xlabel("statement with a float result")
    axes.set_ylabel("norm (line), largest absolute value (dots)")
    # Above the axes, where it hides no data.
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=6, frameon=False)
    return axes


def _mark_not_finite(axes: Any, found: Sequence[StatementStatistics]) -> None:
    """Draw a line at the first statement with NaN or Inf, and an area over each run of such statements."""
    areas = [[*run] for finite, run in groupby(found, lambda each: each.finite) if not finite]
    for position, run in enumerate(areas):
        label = "_" if position else "NaN or Inf"
        left, right = run[0].number - 0.5, run[-1].number + 0.5
        axes.axvspan(left, right, color=_NOT_FINITE, alpha=0.15, linewidth=0, label=label)
    if areas:
        first = areas[0][0]
        place = f", line {first.line}" if first.line is not None else ""
        axes.axvline(
            first.number, color=_NOT_FINITE, linewidth=1.2, label=f"the first: {spelled(first.name)}{place}"
        )


def _plot_phase(axes: Any, phase: str, entries: Sequence[StatementStatistics], color: str) -> None:
    numbers = [each.number for each in entries]
    # A logarithmic axis has no zero: such a statement is a gap.
    norms, extremes = (
        [each.norm or math.nan for each in entries],
        [each.largest or math.nan for each in entries],
    )
    axes.plot(numbers, norms, color=color, linewidth=1.2, label=f"@{phase}")
    axes.plot(numbers, extremes, color=color, linestyle="none", marker=".", markersize=3)
