"""Comparison of a run that is repeated with the run in the journal, bit for bit."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.engine.compilation.tracked_values import tracked_lines
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.frontends import ProgramSource, load
from nncdbg.engine.time.step_starts import NumberedRun
from nncdbg.engine.values.values import Outputs
from nncdbg.errors import RunError
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.journal.recording import journaled
from nncdbg.opening.journal.steps import Result, Steps
from nncdbg.opening.journal_address import read_address
from nncdbg.opening.programs import OpenedProgram, check_not_forked, open_program
from nncdbg.opening.run import failure_of
from nncdbg.stats.series import same
from nncdbg.text.counting import counted
from nncdbg.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.journal import CheckpointRecord, Journal, Run
    from nncdbg.opening.programs import OpenedProgram


class Reproduction:
    """Compares the results and tracks of each step, and the states at each checkpoint, with those of a run.

    `difference` is a sentence about the first that differs, "" if there is none.  The text is the result in
    one sentence, "" if no step was compared.
    """

    def __init__(self, debugger: Debugger, journal: Journal, run: Run) -> None:
        self._debugger, self._journal, self._run = debugger, journal, run
        self.difference = ""
        self._first: int | None = None
        self._compared = 0
        self._compared_tracks = False
        self._checkpoints = 0
        self._known: dict[tuple[str, str], dict[int, float]] = {}
        for track in journal.tracks(run):
            steps, numbers = journal.values(run, *track)
            self._known[track] = dict(zip(steps.tolist(), numbers.tolist(), strict=True))
        self._records = {record.step: record for record in journal.checkpoints(run)}
        lines = tracked_lines(debugger.program)
        self._tracks = [(track.name, line.part) for line in lines for track, _ in line.tracks]
        self._steps = Steps(debugger, self._started, self._ended)
        debugger.tracking.sinks.append(self._tracked)

    def stop(self) -> None:
        """Stop the comparison, and compare the tracks of the last steps."""
        self._steps.stop()
        self._debugger.tracking.fetch()
        self._debugger.tracking.sinks.remove(self._tracked)
        self._check_all_tracked()

    def __str__(self) -> str:
        if self.difference:
            return self.difference
        if self._first is None:
            return ""
        last = self._first + self._compared - 1
        steps = f"step {last} has" if self._compared == 1 else f"steps {self._first} to {last} have"
        what = "results and tracks" if self._compared_tracks else "results"
        found = f"{steps} the same {what} as in run {self._run.number}, bit for bit"
        if not self._checkpoints:
            return found
        return f"{found}; the states are the same at {counted(self._checkpoints, 'checkpoint')}"

    def _ended(self, line: NumberedRun, iteration: int, results: list[Result]) -> None:
        step = line.step(iteration)
        if self.difference or step >= self._run.steps:
            return
        self._first = step if self._first is None else self._first
        self._compared = max(self._compared, step - self._first + 1)
        for name, part, content in results:
            before = self._known.get((name, part), {}).get(step)
            now = float(self._debugger.backend.to_host(content))
            if before is not None and not same(now, before):
                # A track may differ in an earlier step.
                self._debugger.tracking.fetch()
                if not self.difference:
                    self._say(step, f"%{name_text(name)} is {now!r} instead of {before!r}")
                return

    def _tracked(self, name: str, step: int, number: float, part: str) -> None:
        """Compare the number of a track, which is known several steps after its step."""
        before = self._known.get((name, part), {}).pop(step, None)
        if before is None:
            return
        self._compared_tracks = True
        if not self.difference and not same(number, before):
            of_part = " (test)" if part == "test" else ""
            self._say(step, f"the track {name}{of_part} is {number!r} instead of {before!r}")

    def _check_all_tracked(self) -> None:
        """Report the first step without the number of a track that the run has."""
        if self.difference or self._first is None:
            return
        steps = range(self._first, self._first + self._compared)
        missing = [
            (step, name)
            for name, part in self._tracks
            for step in self._known.get((name, part), {})
            if step in steps
        ]
        if missing:
            step, name = min(missing)
            self._say(step, f"the track {name} has no value")

    def _say(self, step: int, what: str) -> None:
        self.difference = f"step {step} differs from run {self._run.number}: {what}"

    def _started(self) -> None:
        start = self._steps.here()
        record = self._records.get(start.step)
        if record is None or self.difference or self._first is None:
            return
        self._checkpoints += 1
        name = self._changed_state(record, start.tensors)
        if name is not None:
            self._debugger.tracking.fetch()
            self.difference = self.difference or (
                f"step {start.step} begins with another %{name_text(name)} than in run {self._run.number}"
            )

    def _changed_state(self, record: CheckpointRecord, tensors: dict[str, Any]) -> str | None:
        """Return the name of the first state that differs from a checkpoint; None if there is none."""
        kept = self._journal.read(record).tensors
        for key, content in tensors.items():
            kind, _, name = key.partition("/")
            if kind not in ("state", "moment") or key not in kept:
                continue
            now = np.asarray(self._debugger.backend.to_host(content))
            if now.tobytes() != kept[key].tobytes():
                return name
        return None


@contextmanager
def reproducing(opened: OpenedProgram, debugger: Debugger) -> Iterator[Reproduction | None]:
    """Compare the steps that run with those of the run in the journal at which the program was opened.

    None for another program, and for a fork with other values.
    """
    run = opened.restart.repeats if opened.restart is not None else None
    if opened.restart is None or run is None:
        yield None
        return
    reproduction = Reproduction(debugger, opened.restart.journal, run)
    try:
        yield reproduction
    finally:
        reproduction.stop()


# -- runs with a journal ---------------------------------------------------------------------------


def run_in_journal(source: ProgramSource, fields: Mapping[str, Any]) -> Outputs:
    """Run a program, or a run in a journal from a step, to the end, and return its outputs.

    `fields` are those of the run configuration that are given.  Raises RunError if a step that is repeated
    differs from the run in the journal, and the errors of `nncdbg.run`.
    """
    given = {name: value for name, value in fields.items() if value not in (None, False, [])}
    # The configuration has the name of a backend.
    kernels = {"backend": given["backend"]} if "backend" in given else {}
    if not isinstance(given.get("backend", ""), str):
        given["backend"] = given["backend"].name
    opened = _opened(source, given)
    debugger = opened.debugger(statistics=False, **kernels)
    with reproducing(opened, debugger) as reproduction, journaled(opened, debugger) as recorder:
        stop = debugger.run()
    unwritten = recorder.problem if recorder is not None else None
    has_stopped = recorder is not None and recorder.has_stopped
    error = unwritten if has_stopped else failure_of(stop, opened.configuration.program) or unwritten
    if error is None and reproduction is not None and reproduction.difference:
        error = RunError(reproduction.difference, hint="compare the versions of the run with those installed")
    if error is not None:
        raise error
    found = debugger.outputs
    assert found is not None
    return found


def _opened(source: ProgramSource, given: dict[str, Any]) -> OpenedProgram:
    if isinstance(source, (str, os.PathLike)) and read_address(os.fspath(source)) is not None:
        given["program"] = os.fspath(source)
        return open_program(RunConfiguration(**given, given=frozenset(given)))
    program = load(source)
    given["program"] = program.source or "MODEL"
    configuration = RunConfiguration(**given, given=frozenset(given))
    check_not_forked(configuration)
    return OpenedProgram(program, configuration.completed({"backend": program.saved.backend}))
