"""A wrong index in the data of a training, such as a label or token out of range, which fails a statement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.engine.diagnosis.sightings import ENTRANCE, StatementVisit
from nncdbg.engine.text.lexemes import name_text
from nncdbg.nan_watch.measuring.latest_iterations import LatestIterations
from nncdbg.nan_watch.measuring.steps import step_at
from nncdbg.nan_watch.measuring.training import BAD_INPUT
from nncdbg.nan_watch.records import FindingUse, WatchFinding
from nncdbg.nan_watch.sites import calls_of, site_of

if TYPE_CHECKING:
    from nncdbg.engine.compilation.code import Statement
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.stopping.stops import Stop


def index_fault(debugger: Debugger, stop: Stop) -> WatchFinding | None:
    """Return the finding for a statement that failed because an index in its batch is out of bounds.

    None if the statement failed for another reason, or reads no batch of integers.
    """
    error = stop.error.__cause__ if stop.error is not None else None
    frames = debugger.control.machine.frames
    run = next((frame for frame in frames if frame.code.epoch is not None), None)
    if not isinstance(error, IndexError) or run is None:
        return None
    failed = StatementVisit.of(_statement(stop), frames)
    code, slots = failed.statement.code, frames[-1].slots
    read = {id(value) for value in code.operands_of(failed.statement.pc, slots)}
    history = LatestIterations(debugger, run.code, debugger.timeline.tick)
    for name, data, batches in history.batches():
        latest = batches[-1]
        if latest is None or latest.dtype.kind not in "iu" or not read & _ids_of(run.slots, run.code, name):
            continue
        return _finding(debugger, failed, name, data, batches, str(error))
    return None


def _statement(stop: Stop) -> Statement:
    from nncdbg.engine.compilation.code import Statement

    assert stop.frame is not None
    return Statement(stop.frame.code, stop.statement_in(stop.frame)[0])


def _ids_of(slots: list[Any], code: Any, name: str) -> set[int]:
    return {id(slots[slot]) for slot, each in enumerate(code.names) if each == name}


def _finding(
    debugger: Debugger, failed: StatementVisit, name: str, data: Any, batches: list[Any], error: str
) -> WatchFinding:
    before = [each for each in batches[:-1] if each is not None and each.size]
    low = min((int(each.min()) for each in before), default=0)
    high = max((int(each.max()) for each in before), default=0)
    wrong = max(int(batches[-1].max()), int(batches[-1].min()), key=_needed)
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


def _needed(index: int) -> int:
    """Return the smallest size of an axis that has this index; negative ones count from its end."""
    return index + 1 if index >= 0 else -index
