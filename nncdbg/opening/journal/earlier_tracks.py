"""The numbers of tracks in the steps before the one at which a run of a journal was opened."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from nncdbg.engine.compilation.code import initial_data
from nncdbg.engine.compilation.tracked_values import TrackedLine, tracked_lines
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.time.step_starts import NumberedRun, lines_of
from nncdbg.engine.tracking.series import LATEST, Point
from nncdbg.engine.tracking.tracking import EarlierPoints
from nncdbg.ir.records import Constant, RunLine, Value

if TYPE_CHECKING:
    from nncdbg.journal import Journal


def add_earlier_tracks(debugger: Debugger, journal: Journal, run: int, step: int) -> None:
    """Let the tracks of a debugger begin with the numbers of a run, and of its parents, before `step`."""
    debugger.tracking.read_earlier = partial(_earlier, debugger, journal, run, step)


def _earlier(debugger: Debugger, journal: Journal, run: int, step: int) -> EarlierPoints:
    known = {*journal.tracks(run)}
    runs = lines_of(debugger.control.machine.frames[0].code)
    return {
        (line.part, track.name): _points(debugger, journal, run, step, line, track.name, runs[line.place[0]])
        for line in tracked_lines(debugger.program)
        for track, _ in line.tracks
        if (track.name, line.part) in known
    }


def _points(
    debugger: Debugger,
    journal: Journal,
    run: int,
    step: int,
    line: TrackedLine,
    name: str,
    loop: NumberedRun,
) -> Sequence[Point]:
    """Return the numbers of one track; those of a ``test`` part have no samples."""
    steps, numbers = journal.values(run, name, line.part)
    before = (steps < step).nonzero()[0][-LATEST:]
    count = _sample_count(debugger, line.line) if line.part == "train" else 0
    found = []
    for number, value in zip(steps[before].tolist(), numbers[before].tolist(), strict=True):
        iteration = number - loop.first_step
        samples = _batch_size(line.line, iteration % loop.per_epoch, count) if line.part == "train" else 0
        # No moment of the session has executed the step.
        found.append(Point(iteration, value, samples, iteration // loop.per_epoch, tick=0))
    return found


def _sample_count(debugger: Debugger, line: RunLine) -> int:
    """Return the number of samples in the data of a line; 1 for a line without data."""
    if line.sources:
        return int(initial_data(Constant(Value(""), line.sources[0]), debugger.program).shape[0])
    return debugger.inputs.samples[line.values[0]] if line.values else 1


def _batch_size(line: RunLine, batch: int, count: int) -> int:
    """Return the number of samples of a batch; the last one of an epoch may have fewer."""
    return 1 if line.batch is None else min(line.batch, count - batch * line.batch)
