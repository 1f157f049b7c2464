"""The starts and ends of the steps of a training, as a debugger's machine reports them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from nncdbg.engine.debugger import Debugger
from nncdbg.engine.execution.events import Event, Iterated, Popped, Pushed
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.time.step_starts import Line, StepStart, lines_of, step_start

Ended: TypeAlias = "Callable[[Line, int, list[Any]], None]"
"""Receives the line, the iteration and the slots at the end of a step."""


class Steps:
    """Calls `started` at the start of each step and after the last one, and `ended` at the end of each step.

    Steps that run again are reported again.
    """

    def __init__(self, debugger: Debugger, started: Callable[[], None], ended: Ended) -> None:
        self._debugger = debugger
        self._machine = debugger.control.machine
        self.lines = lines_of(self._machine.frames[0].code)
        self._moments = {state.value.name: state.of for state in debugger.program.states}
        self._started, self._ended = started, ended
        self._machine.listeners.append(self._hear)

    def stop(self) -> None:
        """Listen no more."""
        if self._hear in self._machine.listeners:
            self._machine.listeners.remove(self._hear)

    @property
    def at_start(self) -> bool:
        """Whether the machine is at the start of a step."""
        frame = self._machine.frames[-1]
        return frame.code.epoch is not None and frame.pc == 0

    def here(self) -> StepStart:
        """Return the present start of a step, whose arrays do not change afterwards."""
        copy = not self._debugger.timeline.retains
        return step_start(self._machine, self.lines, self._moments, copy=copy)

    def _hear(self, event: Event) -> None:
        match event:
            case Pushed(frame) if frame.code.epoch is not None:
                self._started()
            case Iterated(frame, before) if frame.code.epoch is not None:
                self._ended(self._line(frame), frame.iteration - 1, before)
                self._started()
            case Popped(frame) if frame.code.epoch is not None:
                line = self._line(frame)
                self._ended(line, frame.iteration, frame.slots)
                if line is self.lines[-1]:
                    self._started()

    def _line(self, frame: Frame) -> Line:
        return next(line for line in self.lines if line.body is frame.code)


def results_of(line: Line, iteration: int, slots: list[Any]) -> list[tuple[str, str, Any]]:
    """Return the results of a step as (name, part, value): those of evaluations if it ends an epoch."""
    values = line.collected(slots)
    found = [(name, "train", value) for name, value in zip(line.scalars, values, strict=False)]
    if line.ends_epoch(iteration):
        tests = zip(line.evaluated, values[len(line.scalars) :], strict=True)
        found += [(name, "test", value) for name, value in tests]
    return found
