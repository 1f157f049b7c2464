"""The run of a journal that a training writes; an error ends the writing, and the training if it shall."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch

import nncdbg.journal
from nncdbg.engine.errors import NncdbgError, RunError
from nncdbg.journal import NewRun
from nncdbg.presentation.screen import Screen
from nncdbg.version import __version__


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

    def step(self, number: int, epoch: int | None, seconds: float) -> None:
        self._call(lambda writer: writer.step(number, epoch=epoch, seconds=seconds))

    def value(self, name: str, step: int, value: float, part: str) -> None:
        self._call(lambda writer: writer.value(name, step, value, part))

    def checkpoint(
        self, step: int, epoch: int | None, position: dict[str, Any], tensors: dict[str, Any]
    ) -> None:
        self._call(lambda writer: writer.checkpoint(step, epoch=epoch, position=position, tensors=tensors))

    def remove_checkpoint(self, step: int) -> None:
        self._call(lambda writer: writer.remove_checkpoint(step))

    def event(self, kind: str, step: int, message: str) -> None:
        self._call(lambda writer: writer.event(kind, step, message))

    def note(self, text: str) -> None:
        self._call(lambda writer: writer.note(text))

    def flush(self) -> None:
        """Wait until all is in the file."""
        self._call(lambda writer: writer.flush())

    def end(self, status: str) -> None:
        """End the run and close the file."""
        if self.failure is not None and not self._stops:
            Screen().note(f"run {self.number} in {self.path} is incomplete: {self.failure.message}")
        self._has_ended = True
        self._call(lambda writer: writer.end(status))
        self._call(lambda _: self._journal.close())
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

    def _call(self, write: Callable[[Any], None]) -> None:
        if self._writer is None:
            return
        self._calling = True
        try:
            write(self._writer)
        except (NncdbgError, OSError) as error:
            self._fail(error)
        finally:
            self._calling = False
        interruption, self._interruption = self._interruption, None
        if interruption is not None:
            interruption()

    def _fail(self, error: NncdbgError | OSError) -> None:
        """End the writing of the run, and report why."""
        message = self.failed(error).message
        rest = "" if self._has_ended else f", and the training {'stops' if self._stops else 'continues'}"
        Screen().note(f"the journal {self.path} ends here{rest}: {message}")
        self._writer = None
        with suppress(NncdbgError, OSError):  # It repeats the error that was reported.
            self._journal.close()

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
