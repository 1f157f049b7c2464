"""Comparison of a run that is repeated with the run in the journal, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.engine.compilation.tracked_values import tracked_lines
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.text.counting import counted
from nncdbg.engine.text.lexemes import name_text
from nncdbg.engine.time.step_starts import NumberedRun
from nncdbg.engine.tracking.series import same
from nncdbg.opening.journal.steps import Result, Steps

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
                self._differs(step, f"%{name_text(name)} is {now!r} instead of {before!r}")
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

    def _differs(self, step: int, what: str) -> None:
        """Report a difference, unless a track differs in an earlier step."""
        self._debugger.tracking.fetch()
        if not self.difference:
            self._say(step, what)

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
