"""The starts and ends of the steps of a training, as a debugger's machine reports them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from nncdbg.engine.compilation.tracked_values import TrackedLine, tracked_lines
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.execution.events import Event, Iterated, Popped, Pushed
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.stopping.stops import Stop
from nncdbg.engine.time.step_starts import NumberedRun, StepStart, line_at, lines_of, step_start
from nncdbg.engine.tracking.series import LATEST
from nncdbg.engine.tracking.tracking import EarlierPoints
from nncdbg.ir.constants import initial_data
from nncdbg.ir.records import Constant, RunLine, Value
from nncdbg.stats.series import Point

if TYPE_CHECKING:
    from nncdbg.journal import Journal

# -- tracks of earlier steps -----------------------------------------------------------------------


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
        samples = 1 if line.part == "train" else 0
        if samples and line.line.batch is not None:  # The last batch of an epoch may have fewer.
            samples = min(line.line.batch, count - iteration % loop.per_epoch * line.line.batch)
        # No moment of the session has executed the step.
        found.append(Point(iteration, value, samples, iteration // loop.per_epoch, tick=0))
    return found


def _sample_count(debugger: Debugger, line: RunLine) -> int:
    """Return the number of samples in the data of a line; 1 for a line without data."""
    if line.sources:
        return int(initial_data(Constant(Value(""), line.sources[0]), debugger.program).shape[0])
    return debugger.inputs.samples[line.values[0]] if line.values else 1


# -- steps -----------------------------------------------------------------------------------------

Result: TypeAlias = "tuple[str, str, Any]"
"""(name, part, value): the part is "test" for the result of an evaluation, else "train"."""

Ended: TypeAlias = "Callable[[NumberedRun, int, list[Result]], None]"
"""Receives the line, the iteration and the results of a step that has ended."""


class Steps:
    """Calls `started` at the start of each step and after the last one, and `ended` at the end of each step.

    Steps that run again are reported again.  An error of one of them ends the listening: `failed` is called.
    """

    def __init__(
        self,
        debugger: Debugger,
        started: Callable[[], None] = lambda: None,
        ended: Ended = lambda line, iteration, results: None,
        failed: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        self._debugger = debugger
        self._machine = debugger.control.machine
        self.lines = lines_of(self._machine.frames[0].code)
        self._moments = {state.value.name: state.of for state in debugger.program.states}
        self._started, self._ended, self._failed = started, ended, failed
        self.failure: Exception | None = None
        """The error that ended the listening."""
        self._machine.listeners.append(self._hear)

    def stop(self) -> None:
        """Stop listening.  Raises RunError if an error ended the listening before."""
        if self._hear in self._machine.listeners:
            self._machine.listeners.remove(self._hear)
        elif self.failure is not None:
            raise self.failure

    @property
    def count(self) -> int:
        """The number of steps of all ``run`` lines."""
        return self.lines[-1].first_step + self.lines[-1].steps

    @property
    def at_start(self) -> bool:
        """Whether the machine is at the start of a step."""
        frame = self._machine.frames[-1]
        return frame.code.epoch is not None and frame.pc == 0

    def here(self) -> StepStart:
        """Return the present start of a step, whose arrays do not change afterwards."""
        copy = self._debugger.timeline.overwrites
        return step_start(self._machine, self.lines, self._moments, copy=copy)

    def _hear(self, event: Event) -> None:
        try:
            self._heard(event)
        except Exception as error:
            # The machine detaches the listener, and the program runs on.
            self.failure = error
            self._failed(error)
            raise

    def _heard(self, event: Event) -> None:
        match event:
            case Pushed(frame) if frame.code.epoch is not None:
                self._started()
            case Iterated(frame) if frame.code.epoch is not None:
                self._ended_step(self._line(frame), frame.iteration - 1, frame)
                self._started()
            case Popped(frame) if frame.code.epoch is not None:
                line = self._line(frame)
                self._ended_step(line, frame.iteration, None)
                if line is self.lines[-1]:
                    self._started()

    def _ended_step(self, line: NumberedRun, iteration: int, loop: Frame | None) -> None:
        """Pass on the results of a step, with those of the evaluations if it ends an epoch."""
        values = line.collected(self._machine.frames[0], loop)
        found: list[Result] = [
            (name, "train", each) for name, each in zip(line.scalars, values, strict=False)
        ]
        if line.ends_epoch(iteration):
            tests = zip(line.evaluated, values[len(line.scalars) :], strict=True)
            found += [(name, "test", value) for name, value in tests]
        self._ended(line, iteration, found)

    def _line(self, frame: Frame) -> NumberedRun:
        return next(line for line in self.lines if line.body is frame.code)


def run_to_step(debugger: Debugger, lines: tuple[NumberedRun, ...], step: int) -> Stop:
    """Run to the start of a step, or to the end of the last one."""
    control = debugger.control
    line = line_at(lines, step)
    iteration = step - line.first_step

    def arrived() -> bool:
        frame = control.machine.frames[-1]
        if iteration == line.steps:
            return len(control.machine.frames) == 1
        return frame.code is line.body and frame.iteration == iteration and frame.pc == 0

    if not arrived():
        end = iteration == line.steps
        place = (control.machine.frames[0].code, line.pc + 1) if end else (line.body, 0)
        control.run_until(arrived, [place])
    return control.here("entry")
