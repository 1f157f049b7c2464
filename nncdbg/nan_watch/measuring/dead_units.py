"""Warnings about dead units of a training: they give 0 for every sample, so they have no gradient.

One dead unit of many is usual after ReLU.  So only a quarter of the units of a layer counts as a fault, over
enough steps and samples that a unit which is rarely active is not taken for a dead one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nncdbg.engine.debugger import Debugger
from nncdbg.engine.diagnosis.unit_activity import DeadUnits, UnitActivity
from nncdbg.engine.text.lexemes import name_text
from nncdbg.nan_watch.records import WatchFinding
from nncdbg.nan_watch.sites import calls_of, site_of
from nncdbg.nan_watch.step_history import ActivationHistory

VERDICT = "dead units"

LATEST = 16
"""The latest measured steps in which a dead unit is flat for every sample."""

SHARE = 0.25
"""Least share of dead units in a layer for a warning."""

_FEWEST = 2
"""Least number of dead units."""

STEPS = 10
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
        if dead.steps >= STEPS and dead.samples >= SAMPLES:
            yield _finding(each, dead, debugger)


def _finding(activity: UnitActivity, dead: DeadUnits, debugger: Debugger) -> WatchFinding:
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
