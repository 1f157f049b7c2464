"""Writing a training to a journal: its steps, the results of each step, and checkpoints.

A listener of the machine takes references to the values at the start of a step, which never change; a thread
of the journal writes them while the training goes on.  The run itself is not changed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.engine.debugger import Debugger
from nncdbg.engine.errors import UsageError
from nncdbg.engine.graph import Array
from nncdbg.engine.text.counting import counted
from nncdbg.engine.time.deviations import Detour
from nncdbg.engine.time.step_starts import Line, StepStart
from nncdbg.opening.folder_writing import versions_of
from nncdbg.opening.journal.content import data_of, inputs_of, kept_configuration, text_of
from nncdbg.opening.journal.policy import CheckpointPolicy
from nncdbg.opening.journal.steps import Steps, results_of

if TYPE_CHECKING:
    from nncdbg.journal import Journal, NewRun, RunWriter
    from nncdbg.opening.journal.forking import Fork
    from nncdbg.opening.journal.reopening import Restart
    from nncdbg.opening.programs import OpenedProgram

FETCHED = 64
"""Steps after which results are fetched from a device."""


@dataclass(slots=True)
class Series:
    """The results of one name that a loop has collected, as one array that grows with them."""

    buffer: Array = field(default_factory=lambda: np.empty(0))
    count: int = 0

    def array(self, items: Sequence[Any], to_host: Callable[[Any], Any]) -> Array:
        """Return the items as an array that does not change afterwards; only new ones are converted."""
        if len(items) < self.count:
            self.count = 0
        new = [to_host(each) for each in items[self.count :]]
        if new:
            if self.count + len(new) > len(self.buffer):
                grown = np.empty(max(64, 2 * (self.count + len(new))), np.asarray(new[0]).dtype)
                grown[: self.count] = self.buffer[: self.count]
                self.buffer = grown
            self.buffer[self.count : self.count + len(new)] = new
            self.count += len(new)
        return self.buffer[: self.count]


class StepRecorder:
    """Writes the steps of a debugger's training to a run of a journal.

    `begin` starts a run from a description with the step from which it is a fork (None: it is none).  Steps
    that were written are not written again when the program goes back and runs them once more.  An edit of a
    value forks the run.
    """

    def __init__(
        self,
        debugger: Debugger,
        begin: Callable[[int | None, int | None], RunWriter],
        policy: Callable[[], CheckpointPolicy],
        parent: tuple[int, int] | None = None,
    ) -> None:
        self._debugger = debugger
        self._begin_run, self._make_policy = begin, policy
        self._series: dict[str, Series] = {}
        self._waiting: list[tuple[str, int, Any, str]] = []
        self._branch = debugger.timeline.branch
        self._then = time.perf_counter()
        number, step = parent or (None, None)
        self.writer = begin(number, step)
        self.policy = policy()
        self._next = step or 0
        """The first step that is not written yet."""
        self._offset = 0
        """The tick at which the run began, from which its checkpoints count."""
        self._latest: StepStart | None = None
        self._first: dict[str, Any] = {**data_of(debugger.program), **inputs_of(debugger.inputs)}
        """Further tensors of the first checkpoint."""
        self._steps = Steps(debugger, self._starts, self._ended_step)
        if self._steps.at_start:
            self._starts()

    def __str__(self) -> str:
        return f"run {self.writer.number} with {counted(self._next, 'step')}"

    # -- steps ------------------------------------------------------------------------------------

    def _ended_step(self, line: Line, iteration: int, slots: list[Any]) -> None:
        step = line.step(iteration)
        if step != self._next or not self._follows_edits(step):
            return
        self._next += 1
        now = time.perf_counter()
        self.writer.step(step, epoch=line.epoch(iteration), seconds=now - self._then)
        self._then = now
        for name, part, content in results_of(line, iteration, slots):
            self._result(name, step, content, part)

    def _result(self, name: str, step: int, content: Any, part: str) -> None:
        if self._debugger.backend.on_host:
            self._value(name, step, content, part)
            return
        self._waiting.append((name, step, content, part))
        if len(self._waiting) >= FETCHED:
            self._fetch()

    def _fetch(self) -> None:
        """Write the results that are still on the device."""
        for name, step, content, part in self._waiting:
            self._value(name, step, self._debugger.backend.to_host(content), part)
        self._waiting.clear()

    def _value(self, name: str, step: int, content: Any, part: str) -> None:
        number = float(content)
        self.writer.value(name, step, number, part)
        if not np.isfinite(number):
            self.writer.event("nan", step, f"%{name} is {number:g}")

    def _starts(self) -> None:
        """Take the start of the next step, and write it as a checkpoint if one is due."""
        start = self._steps.here()
        if start.step != self._next or not self._follows_edits(start.step):
            return
        self._latest = start
        last = start.epoch is None
        if last or self.policy.due(start.step, start.epoch or 0):
            self._write(start)

    def _write(self, start: StepStart) -> None:
        to_host = self._debugger.backend.to_host
        tensors = {
            key: self._series.setdefault(key, Series()).array(content, to_host)
            if isinstance(content, list)
            else to_host(content)
            for key, content in start.tensors.items()
        }
        position = dict(start.position)
        detours = any(isinstance(each, Detour) for each in self._debugger.timeline.edits)
        position["tick"] = None if detours else position["tick"] - self._offset
        if "entered" in position:
            position["entered"] = max(0, position["entered"] - self._offset)
        size = sum(each.nbytes for each in tensors.values())
        tensors |= self._first
        self._first = {}
        self.writer.checkpoint(start.step, epoch=start.epoch, position=position, tensors=tensors)
        for step in self.policy.written(start.step, start.epoch or 0, size):
            self.writer.remove_checkpoint(step)
        self._latest = None

    # -- edits ------------------------------------------------------------------------------------

    def _follows_edits(self, step: int) -> bool:
        """Return whether the steps belong to the run that is written."""
        return self._debugger.timeline.branch == self._branch

    # -- the end ----------------------------------------------------------------------------------

    def end(self) -> None:
        """End the run: write the start of the step that was interrupted or failed, and the status.

        Raises the error of a journal that could not be written.
        """
        self._steps.stop()
        self._fetch()
        stop, status = self._debugger.stop, "interrupted"
        if self._next == self._steps.lines[-1].first_step + self._steps.lines[-1].steps:
            status = "ended"
        elif stop.reason == "exception":
            status = "failed"
            self.writer.event("exception", self._next, stop.detail or str(stop.error))
        if self._latest is not None and self._latest.step == self._next:
            self._write(self._latest)
        self.writer.end(status)


@contextmanager
def journaled(opened: OpenedProgram, debugger: Debugger) -> Iterator[StepRecorder | None]:
    """Write the run of a debugger to the journal of its configuration, if it has one.

    Raises UsageError for a program without a ``run`` line, LoadError for a file that is not a journal, and
    the error of a journal that could not be written.
    """
    configuration = opened.configuration
    restart = opened.restart
    path = configuration.journal
    if restart is not None:
        path = _file_of_fork(restart, path)
    if path is None:
        yield None
        return
    if not debugger.program.runs:
        raise UsageError(
            "--journal is for trainings, but the program has no `run` line",
            hint="see docs/TRAINING.md, or leave out --journal",
        )
    policy = CheckpointPolicy.of(configuration.checkpoint_every, configuration.checkpoint_budget)
    from nncdbg import journal

    with journal.open(path, write=True) as file:
        recorder = StepRecorder(
            debugger,
            lambda parent, step: _begin(file, opened, debugger, parent, step),
            lambda: CheckpointPolicy(policy.every, policy.budget),
            restart.parent if restart is not None else None,
        )
        if configuration.note:
            recorder.writer.note(configuration.note)
        try:
            yield recorder
        finally:
            recorder.end()


def _file_of_fork(restart: Restart | Fork, path: str | None) -> str | None:
    """Return the journal in which a fork is written: that of its parent; None for a run that is repeated."""
    if path is not None and (restart.parent is None or not os.path.samefile(path, restart.journal.path)):
        raise UsageError(
            f"--journal {path}: {restart.address} is in a journal already",
            hint="start a fork with --fork, which is written to the same file",
        )
    return None if restart.parent is None else str(restart.journal.path)


def _begin(
    file: Journal, opened: OpenedProgram, debugger: Debugger, parent: int | None, step: int | None
) -> RunWriter:
    return file.start(_description(opened, debugger, parent, step))


def _description(opened: OpenedProgram, debugger: Debugger, parent: int | None, step: int | None) -> NewRun:
    from nncdbg.journal import NewRun

    configuration = opened.configuration
    kept = kept_configuration(configuration, debugger.inputs.dims) | {"source": opened.program.source}
    return NewRun(
        kind="graph",
        name=opened.program.source or configuration.program,
        program=text_of(opened.program),
        configuration=kept,
        versions=versions_of(str(configuration.backend)),
        seed=configuration.seed,
        command=sys.argv[:],
        parent=parent,
        parent_step=step,
    )
