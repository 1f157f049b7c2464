"""Writing a training to a journal: its steps, the results of each step, and checkpoints.

A listener of the machine takes references to the values at the start of a step, which never change; a thread
of the journal writes them while the training runs.  The run itself is not changed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.engine.compilation.tracked_values import tracked_lines
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.execution.findings import NUMERIC, Finding
from nncdbg.engine.stopping.stops import LogMessage
from nncdbg.engine.time.checkpoints import Detour, Edit, edits_of
from nncdbg.engine.time.step_starts import NumberedRun, StepStart, lines_of
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.ir.records import Array
from nncdbg.opening.folder_writing import versions_of
from nncdbg.opening.journal.content import data_of, kept_configuration, kept_inputs, text_of
from nncdbg.opening.journal.policy import CheckpointPolicy
from nncdbg.opening.journal.ranks import INF, NAN
from nncdbg.opening.journal.steps import Result, Steps
from nncdbg.opening.journal.value_recorder import ValueRecorder
from nncdbg.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.journal import NewRun, RunWriter
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
            self.buffer, self.count = np.empty(0), 0
        new = [to_host(each) for each in items[self.count :]]
        if new:
            if self.count + len(new) > len(self.buffer):
                grown = np.empty(max(64, 2 * (self.count + len(new))), np.asarray(new[0]).dtype)
                grown[: self.count] = self.buffer[: self.count]
                self.buffer = grown
            self.buffer[self.count : self.count + len(new)] = new
            self.count += len(new)
        return self.buffer[: self.count]


@dataclass(slots=True, eq=False)
class BranchRun:
    """The run to which one branch of the timeline is written."""

    writer: RunWriter
    policy: CheckpointPolicy
    next: int
    """The first step that is not written yet."""
    offset: int | None
    """The tick at which the run begins, from which its checkpoints count; None until its first checkpoint."""
    first: dict[str, Any]
    """Further tensors of the first checkpoint."""
    kept: int = -1
    """The step of the latest checkpoint."""
    latest: StepStart | None = None
    """The start of the next step, if no checkpoint has it."""
    series: dict[str, Series] = field(default_factory=dict)


class StepRecorder:
    """Writes the steps of a debugger's training to a run of a journal.

    `begin` starts a run, as a fork of (run, step) or of none; `policy` makes the policy of its checkpoints.
    `inputs` are tensors of the first checkpoint by name.
    Steps that were written are not written again when the program goes back and runs them once more.  An edit
    of a value begins a fork.  `values` writes values of each step, or their statistics.

    An error of the journal is reported when it is known; with `stops`, the program then stops.
    """

    def __init__(
        self,
        debugger: Debugger,
        begin: Callable[[tuple[int, int] | None], RunWriter],
        policy: Callable[[], CheckpointPolicy],
        inputs: Mapping[str, Array],
        parent: tuple[int, int] | None = None,
        values: ValueRecorder | None = None,
        *,
        stops: bool = False,
    ) -> None:
        self._debugger = debugger
        self._stops = stops
        self._on_host = debugger.backend.on_host
        self._values = values
        self._begin, self._policy = begin, policy
        self._kept: dict[str, Any] = {**data_of(debugger.program), **inputs}
        self._waiting: list[tuple[RunWriter, str, int, Any, str]] = []
        self._edits: set[Edit] = set()
        self._found: dict[int, int] = {}
        """The latest step with a NaN or Inf of each run."""
        self._then = time.perf_counter()
        self.problem: NncdbgError | None = None
        """The error for which a part of the run is not in the journal."""
        self.has_stopped = False
        """Whether the program was stopped for the problem."""
        self.has_failed = False
        """Whether an error ended the run that the debugger does not have."""
        self._has_ended = False
        self._runs: dict[int, BranchRun] = {}
        self._runs[debugger.timeline.branch] = self._new(parent, 0)
        self._is_fork, self._first = parent is not None, 0 if parent is None else parent[1]
        self._steps = Steps(debugger, self._starts, self._ended_step, self._failed)
        debugger.finding_listeners.append(self._finding)
        debugger.tracking.sinks.append(self._tracked)
        if self._steps.at_start:
            self._starts()

    def __str__(self) -> str:
        runs = [f"run {run.writer.number} up to step {run.next}" for run in self._runs.values()]
        return ", ".join(runs)

    @property
    def run(self) -> BranchRun:
        """The run of the present branch, or that of its nearest ancestor with one."""
        number: int | None = self._debugger.timeline.branch
        while number not in self._runs:
            assert number is not None
            number = self._debugger.timeline.branches[number].parent
        return self._runs[number]

    def _new(self, parent: tuple[int, int] | None, offset: int | None) -> BranchRun:
        step = 0 if parent is None else parent[1]
        return BranchRun(self._begin(parent), self._policy(), step, offset, dict(self._kept))

    # -- steps ------------------------------------------------------------------------------------

    def _ended_step(self, line: NumberedRun, iteration: int, results: list[Result]) -> None:
        step = line.step(iteration)
        run = self._run_at(step)
        contents = {} if self._values is None else self._values.taken()
        if step != run.next:
            return
        run.next += 1
        now = time.perf_counter()
        numbers = [(name, float(each), part) for name, part, each in results] if self._on_host else []
        run.writer.step(step, epoch=line.epoch(iteration), seconds=now - self._then, values=numbers)
        self._then = now
        if self._values is not None:
            self._values.write(run.writer, step, line.epoch(iteration), contents)
        for name, number, _ in numbers:
            self._check_finite(run.writer, name, step, number)
        if not self._on_host:
            self._waiting += [(run.writer, name, step, each, part) for name, part, each in results]
            if len(self._waiting) >= FETCHED:
                self._fetch()

    def _tracked(self, name: str, step: int, number: float, part: str) -> None:
        self.attempt(lambda: self._value(self._run_at(step).writer, name, step, number, part))

    def _fetch(self) -> None:
        for writer, name, step, content, part in self._waiting:
            self._value(writer, name, step, self._debugger.backend.to_host(content), part)
        self._waiting.clear()

    def _starts(self) -> None:
        """Take the start of the next step, and write it as a checkpoint if one is due."""
        start = self._steps.here()
        run = self._run_at(start.step)
        if start.step != run.next or start.step == run.kept:
            return
        run.latest = start
        if start.epoch is None or run.policy.due(start.step, start.epoch):
            self._write(run, start)

    def _write(self, run: BranchRun, start: StepStart) -> None:
        to_host = self._debugger.backend.to_host
        tensors: dict[str, Any] = {}
        for key, content in start.tensors.items():
            if isinstance(content, list):
                tensors[key] = run.series.setdefault(key, Series()).array(content, to_host)
            else:
                tensors[key] = to_host(content)
        position, offset = dict(start.position), run.offset
        if offset is None:
            offset = run.offset = position["tick"]
        edits = self._debugger.timeline.edits
        detours = any(isinstance(each, Detour) and each.tick > offset for each in edits)
        position["tick"] = None if detours else position["tick"] - offset
        if "entered" in position:
            position["entered"] = max(0, position["entered"] - offset)
        size = sum(each.nbytes for each in tensors.values())
        tensors |= run.first
        run.first = {}
        run.writer.checkpoint(start.step, epoch=start.epoch, position=position, tensors=tensors)
        for step in run.policy.written(start.step, start.epoch or 0, size):
            run.writer.remove_checkpoint(step)
        run.latest, run.kept = None, start.step

    # -- edits and findings -----------------------------------------------------------------------

    def _run_at(self, step: int) -> BranchRun:
        """Return the run of the present branch; begin a fork at `step` if the branch is new.

        Before its edit, a branch repeats the steps of its parent.
        """
        timeline = self._debugger.timeline
        if timeline.branch not in self._runs:
            if timeline.tick <= timeline.branches[timeline.branch].tick:
                return self.run
            parent = self.run
            # The journal forks committed steps only; the edited step is one of the fork.
            parent.writer.flush()
            fork = self._new((parent.writer.number, min(step, parent.next)), None)
            self._runs[timeline.branch] = fork
        run = self._runs[timeline.branch]
        for edit in edits_of(timeline.edits):
            if edit not in self._edits and edit.tick <= timeline.tick:
                self._edits.add(edit)
                array = np.asarray(edit.changes[0][3])
                text = str(array.tolist()) if array.size <= 16 else f"{array.dtype} {[*array.shape]}"
                run.writer.edit(edit.name, step, text)
        return run

    def command(self, text: str) -> None:
        """Write a command that the user has typed."""
        self.attempt(lambda: self.run.writer.command(text, self.run.next))

    def note(self, text: str) -> None:
        """Write a remark of the user on the present step."""
        self.attempt(lambda: self.run.writer.note(text, self.run.next))

    def _finding(self, finding: Finding) -> None:
        """Write an event for the first NaN or Inf that is found in a step."""
        run = self.run
        if finding.kind not in NUMERIC or self._debugger.timeline.replaying:
            return
        at = finding.binding
        line = self._debugger.loaded.line(at.code, at.pc)
        words = finding.detail or f"{finding.kind} found at line {line}"
        self.attempt(lambda: self._bad(run.writer, run.next, finding.kind, words))

    def _bad(self, writer: RunWriter, step: int, kind: str, message: str) -> None:
        """Write the event of a NaN or Inf, once for consecutive steps."""
        latest = self._found.get(writer.number)
        self._found[writer.number] = step if latest is None else max(latest, step)
        if latest is None or step > latest + 1:
            writer.event(kind, step, message)

    def _value(self, writer: RunWriter, name: str, step: int, content: Any, part: str) -> None:
        number = float(content)
        writer.value(name, step, number, part)
        self._check_finite(writer, name, step, number)

    def _check_finite(self, writer: RunWriter, name: str, step: int, number: float) -> None:
        if not np.isfinite(number):
            self._bad(writer, step, NAN if np.isnan(number) else INF, f"%{name_text(name)} is {number:g}")

    # -- the end ----------------------------------------------------------------------------------

    def end(self) -> None:
        """End the runs: write the start of the step that was interrupted or failed, and the status.

        An error of the journal is `problem` afterwards.
        """
        self._has_ended = True
        self.attempt(self._steps.stop)
        self.attempt(self._debugger.tracking.fetch)
        self.attempt(self._fetch)
        for run in self._runs.values():
            self.attempt(partial(self._end, run))

    def attempt(self, action: Callable[[], object]) -> None:
        """Perform an action on the journal; its error is `problem`, unless there was one before."""
        try:
            action()
        except NncdbgError as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Report an error of the journal once; nothing more is written."""
        if self.problem is not None or not isinstance(error, NncdbgError):
            return
        self.problem = error
        if self._has_ended:
            return
        control = self._debugger.control
        rest = "the run stops" if self._stops else "the run continues without its journal"
        control.said(LogMessage(f"{error.message}; {rest}", control.machine.frames[-1], None))
        if self._stops:
            self.has_stopped = True
            control.pause()

    def _end(self, run: BranchRun) -> None:
        stop, status = self._debugger.stop, "interrupted"
        if run.next == self._steps.count:
            status = "ended"
        elif (stop.error is not None or self.has_failed) and run is self.run:
            status = "failed"
            if self._is_fork and run.next == self._first:
                run.writer.remove()
                return
            if stop.error is not None:
                run.writer.event("exception", run.next, stop.detail or str(stop.error))
        if run.latest is not None and run.latest.step == run.next:
            self._write(run, run.latest)
        run.writer.end(status)


# -- runs of a debugger ----------------------------------------------------------------------------


@contextmanager
def journaled(opened: OpenedProgram, debugger: Debugger) -> Iterator[StepRecorder | None]:
    """Write the run of a debugger to the journal of its configuration, if it has one.

    A fork is written to the journal of its parent.  An error while the run is written is reported
    at once, and is `StepRecorder.problem` afterwards.

    Raises UsageError for a program without a ``run`` line, LoadError for a file that is not a journal.
    """
    configuration = opened.configuration
    restart = opened.restart
    path = configuration.journal and Path(configuration.folder or "", configuration.journal)
    if restart is not None:
        path = _file_of_fork(restart, path or None)
    if not path:
        hint = "add --journal FILE" if restart is None else "start a fork of the run with --fork"
        for name in _NEED_A_JOURNAL:
            if name in configuration.given and getattr(configuration, name):
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} is for a run that is written to a journal", hint=hint)
        yield None
        return
    if not debugger.program.runs:
        raise UsageError(
            "--journal is for trainings, but the program has no `run` line",
            hint="see docs/TRAINING.md, or leave out --journal",
        )
    _check_names(debugger)
    CheckpointPolicy.of(configuration.checkpoint_every, configuration.checkpoint_budget)
    tensors, files = kept_inputs(debugger.inputs, configuration)
    values = ValueRecorder.of(debugger, configuration)
    from nncdbg import journal

    file = journal.open(path, write=True)
    recorder = StepRecorder(
        debugger,
        lambda parent: file.start(_description(opened, debugger, files, parent)),
        lambda: CheckpointPolicy.of(configuration.checkpoint_every, configuration.checkpoint_budget),
        tensors,
        restart.parent if restart is not None else None,
        values,
        stops=configuration.on_journal_error == "stop",
    )
    if configuration.note:
        recorder.note(configuration.note)
    try:
        yield recorder
    except NncdbgError:
        recorder.has_failed = True
        raise
    finally:
        recorder.end()
        recorder.attempt(file.close)


_NEED_A_JOURNAL = (
    "checkpoint_every",
    "checkpoint_budget",
    "journal_statistics",
    "journal_values",
    "journal_values_every",
    "journal_codec",
    "on_journal_error",
    "note",
)


def _check_names(debugger: Debugger) -> None:
    """Raise UsageError for a track with the name of a result, of which the journal could have only one."""
    runs = lines_of(debugger.control.machine.frames[0].code)
    for line in tracked_lines(debugger.program):
        results = {name for run in runs for name in (run.scalars if line.part == "train" else run.evaluated)}
        for track, _ in line.tracks:
            if track.name in results:
                raise UsageError(
                    f"the track {track.name} has the name of the result %{name_text(track.name)}, which the "
                    "journal contains anyway",
                    hint="leave out the track, or choose another name",
                )


def _file_of_fork(restart: Restart | Fork, path: Path | None) -> Path | None:
    """Return the journal in which a fork is written: that of its parent; None for a run that is repeated."""
    if path is not None and (
        restart.parent is None or not (path.exists() and os.path.samefile(path, restart.journal.path))
    ):
        raise UsageError(
            f"--journal {path}: {restart.address} is in a journal already",
            hint="start a fork with --fork, which is written to the same file",
        )
    return None if restart.parent is None else restart.journal.path


def _description(
    opened: OpenedProgram,
    debugger: Debugger,
    files: Mapping[str, tuple[str, str]],
    parent: tuple[int, int] | None,
) -> NewRun:
    from nncdbg.journal import NewRun

    configuration = opened.configuration
    kept = kept_configuration(configuration, debugger.inputs.dims, files)
    kept["source"] = opened.program.source
    if configuration.changes:
        kept["changes"] = {name: str(value) for name, value in configuration.changes.items()}
    run, step = parent or (None, None)
    return NewRun(
        kind="graph",
        name=opened.program.source or configuration.program,
        program=text_of(opened.program),
        configuration=kept,
        versions=versions_of(str(configuration.backend)),
        seed=configuration.seed,
        command=sys.argv[:],
        parent=run,
        parent_step=step,
    )
