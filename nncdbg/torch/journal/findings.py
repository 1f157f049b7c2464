"""Save the steps that a flight recorder found to be bad: checkpoints, an event, and the step as a folder."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from nncdbg.engine.errors import NncdbgError, RunError, UsageError
from nncdbg.opening.journal.recorded_steps import bundle_folder
from nncdbg.presentation.screen import Screen
from nncdbg.torch.journal.kept_start import KeptStart
from nncdbg.torch.journal.run_journal import RunJournal
from nncdbg.torch.recorded_step import RecordedStep

MOST = 10
"""Findings of a run whose steps are saved.  Later ones are only events."""


class Findings:
    """The findings of one run."""

    def __init__(self, journal: RunJournal) -> None:
        self._journal = journal
        self.lines: list[str] = []
        """A line for each finding, for the report at the end."""

    def add(
        self,
        kind: str,
        step: int,
        message: str,
        starts: Sequence[KeptStart],
        record: Callable[[list[str]], RecordedStep | None],
    ) -> None:
        """Save a finding: the kept starts, oldest first, an event, and the step that `record` returns.

        `record` appends to its list why there is no recorded step.
        """
        journal = self._journal
        if len(self.lines) >= MOST:
            journal.event(kind, step, message)
            return
        self.save_starts(starts)
        journal.event(kind, step, message)
        journal.flush()
        self.lines.append(f"step {step}: {message}")
        Screen().note(f"step {step}: {message}")
        self.save_step(step, message, record)

    def save_starts(self, starts: Sequence[KeptStart]) -> None:
        """Write the kept starts that no checkpoint has."""
        for start in starts:
            save_start(self._journal, start)

    def save_step(self, step: int, message: str, record: Callable[[list[str]], RecordedStep | None]) -> None:
        """Save the step that `record` returns as a folder, and print where it is, or why there is none."""
        notes: list[str] = []
        recorded = record(notes)
        folder = None if recorded is None else self._write(step, message, recorded, notes)
        screen = Screen()
        for each in notes:
            screen.note(f"step {step}: {each}")
        if folder is not None:
            screen.note(f"step {step} is saved; open it with `nncdbg {shlex.quote(str(folder))}`")

    def _write(self, step: int, message: str, recorded: RecordedStep, notes: list[str]) -> Path | None:
        """Save a recorded step as a folder, and return it; None if it cannot be saved."""
        run, path = self._journal.number, self._journal.path
        folder = bundle_folder(path, run, step)
        title = f"step {step} of run {run} in {os.path.basename(path)}: {message}"
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            recorded.save(folder, title=title, notes=notes)
        except (NncdbgError, OSError, MemoryError) as error:
            words = error.message if isinstance(error, NncdbgError) else str(error)
            notes.append(f"the step cannot be saved as a folder: {words}")
            if not isinstance(error, UsageError):
                self._journal.failed(RunError(f"cannot write {folder}: {words}"))
            return None
        return folder


def save_start(journal: RunJournal, start: KeptStart) -> None:
    """Write the start of a step as a checkpoint, unless one has it."""
    if start.saved or start.step < 0 or not journal.writes:
        return
    try:
        position, tensors = start.checkpoint()
    except (NncdbgError, MemoryError, TypeError) as error:
        start.saved = True
        words = error.message if isinstance(error, NncdbgError) else str(error) or "out of memory"
        Screen().note(f"step {start.step}: there is no checkpoint: {words}")
        return
    if not start.saved:  # A handler of SIGTERM may have saved it meanwhile.
        start.saved = True
        journal.checkpoint(start.step, start.epoch, position, tensors)
