"""The run that a training writes: journal, findings, and the end by SIGTERM."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

import nncdbg.journal
from nncdbg.errors import NncdbgError, RunError, UsageError
from nncdbg.journal import NewRun
from nncdbg.opening.journal.ranks import bundle_folder
from nncdbg.presentation.screen import Screen
from nncdbg.torch.journal.training_objects import KeptStart
from nncdbg.torch.recorded_step import RecordedStep
from nncdbg.version import __version__

# -- the journal ---------------------------------------------------------------------------


class RunJournal:
    """Writes one run.  After an error, which is printed at once and at the end, nothing more is written.

    With `stops`, the training ends after the step of the error: `check` raises it then.
    """

    def __init__(self, path: str, new: NewRun, *, stops: bool = False) -> None:
        """Start a run.  Raises NncdbgError if the file cannot be written, or is not a journal."""
        self.path = path
        self._stops = stops
        self._journal = nncdbg.journal.open(path, write=True)
        try:
            self._writer: Any = self._journal.start(new)
        except BaseException:
            self._journal.close()
            raise
        self.number: int = self._writer.number
        self.failure: NncdbgError | None = None
        """The error for which a part of the run is not in its files."""
        self._has_ended = False
        self._calling = False
        """Whether a call of the journal is in progress."""
        self._interruption: Callable[[], None] | None = None
        """What a signal handler left for the end of that call."""

    @property
    def writes(self) -> bool:
        """Whether the run is still written."""
        return self._writer is not None

    def write(self, method: str, *values: Any, **options: Any) -> None:
        """Call a method of the writer of the run, such as ``event``; nothing if the writing has ended."""
        if self._writer is not None:
            self._call(partial(getattr(self._writer, method), *values, **options))

    def end(self, status: str) -> None:
        """End the run and close the file."""
        if self.failure is not None and not self._stops:
            Screen().note(f"run {self.number} in {self.path} is incomplete: {self.failure.message}")
        self._has_ended = True
        self.write("end", status)
        if self._writer is not None:
            self._call(self._journal.close)
        self._writer = None

    def check(self) -> None:
        """Raise the error for which a part of the run is not in its files, if the training shall stop."""
        if self._stops and self.failure is not None:
            raise self.failure.with_traceback(None)

    def leave_process(self) -> None:
        """Write nothing: this process is a fork, and the run is that of its parent."""
        self._writer = None

    def when_free(self, function: Callable[[], None]) -> None:
        """Call a function now or, if a signal interrupted a call of the journal, right after that call.

        The locks of the journal are not reentrant.
        """
        if self._calling:
            self._interruption = function
        else:
            function()

    def _call(self, function: Callable[[], None]) -> None:
        self._calling = True
        try:
            function()
        except (NncdbgError, OSError) as error:
            # The writing ends here.
            message = self.failed(error).message
            rest = "" if self._has_ended else f", and the training {'stops' if self._stops else 'continues'}"
            Screen().note(f"the journal {self.path} ends here{rest}: {message}")
            self._writer = None
            with suppress(NncdbgError, OSError):  # It repeats the error that was reported.
                self._journal.close()
        finally:
            self._calling = False
        interruption, self._interruption = self._interruption, None
        if interruption is not None:
            interruption()

    def failed(self, error: Exception) -> NncdbgError:
        """Keep the first error for which a part of the run is not in its files; return this one."""
        if not isinstance(error, NncdbgError):
            error = RunError(f"cannot write the journal {self.path}: {error}")
        self.failure = self.failure or error
        return error


def new_run(
    configuration: dict[str, Any], *, name: str | None, parent: int | None, parent_step: int | None
) -> NewRun:
    """Return what is known of the training of this process."""
    seed = torch.initial_seed()
    script = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "training"
    return NewRun(
        kind="torch",
        name=name or script,
        configuration=configuration,
        versions={
            "nncdbg": __version__,
            "python": sys.version.partition(" ")[0],
            "torch": str(torch.__version__),
            "numpy": np.__version__,
        },
        # SQLite's integers are signed; torch takes the negative number for the same seed.
        seed=seed if seed < 1 << 63 else seed - (1 << 64),
        command=[sys.executable, *sys.argv],
        parent=parent,
        parent_step=parent_step,
    )


# -- findings ------------------------------------------------------------------------------

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
            journal.write("event", kind, step, message)
            return
        self.save_starts(starts)
        journal.write("event", kind, step, message)
        journal.write("flush")
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
        journal.write("checkpoint", start.step, epoch=start.epoch, position=position, tensors=tensors)


# -- SIGTERM -------------------------------------------------------------------------------


class Terminated(BaseException):
    """SIGTERM has come.  No `except Exception` of a user stops it, so blocks of the training end."""


class TerminationHandler:
    """Calls `terminated` when SIGTERM comes, before the handler that the script has.

    Without a handler of the script, Terminated is raised where the training is, so that the recorder can
    record the step; `finish` then ends the process as SIGTERM does.  Only the main thread can have handlers:
    on another one, this does nothing.  `when_free` calls a function as soon as the journal can be written.
    """

    def __init__(
        self, terminated: Callable[[], None], when_free: Callable[[Callable[[], None]], None]
    ) -> None:
        self._terminated = terminated
        self._when_free = when_free
        self._before: object = None
        self._process = os.getpid()
        self._installed = threading.current_thread() is threading.main_thread()
        if self._installed:
            self._before = signal.getsignal(signal.SIGTERM)
            signal.signal(signal.SIGTERM, self._handle)

    def remove(self) -> None:
        """Restore the handler of the script, unless it has installed another one meanwhile."""
        if self._installed and signal.getsignal(signal.SIGTERM) == self._handle:
            # A handler that was not installed from Python counts as the default.
            before = signal.SIG_DFL if self._before is None else self._before
            signal.signal(signal.SIGTERM, before)  # type: ignore[arg-type]
        self._installed = False

    def finish(self) -> None:
        """End the process by SIGTERM, or call the handler that the script has."""
        self.remove()
        signal.raise_signal(signal.SIGTERM)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            self.finish()
        else:
            self._when_free(partial(self._end, number, frame))

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._terminated()
        before = self._before
        if callable(before):
            before(number, frame)
        elif before != signal.SIG_IGN:
            raise Terminated


@contextmanager
def deferred_termination() -> Iterator[Callable[[], bool]]:
    """Let SIGTERM wait for the end of the block; yield a function that returns whether it has come.

    Only the main thread can have handlers: on another one, this does nothing.
    """
    came = False

    def defer(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, defer)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
        if came:
            signal.raise_signal(signal.SIGTERM)
