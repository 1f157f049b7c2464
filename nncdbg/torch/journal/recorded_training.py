"""A flight recorder that begins and ends with the training of another library, for its callbacks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from nncdbg.torch.journal.active_recreation import RECREATIONS
from nncdbg.torch.journal.flight_recorder import FlightRecorder, flight_recorder
from nncdbg.torch.journal.resuming import resume
from nncdbg.torch.named_models import Models, Optimizers


class RecordedTraining:
    """The recorder of one training; `options` are those of `nncdbg.torch.flight_recorder`.

    `resume`, the address to continue at, is an option as well.
    """

    def __init__(self, path: str | os.PathLike[str], options: dict[str, Any]) -> None:
        self._resume = options.pop("resume", None)
        self.recorder: FlightRecorder | None = None
        """The recorder of this training, or of the last one."""
        self._path = path
        self._options = options

    def begin(
        self,
        model: Models,
        optimizer: Optimizers,
        *,
        check: Callable[[], None] = lambda: None,
        **objects: Any,
    ) -> int | None:
        """Record a training; return the step of the checkpoint at which it continues, if any.

        `check` is called once the objects are restored.  Raises what it raises, and UsageError for wrong
        options, and inside of a watch.
        """
        options = {**objects, **self._options}
        if self._resume is not None:
            kept = {name: options.get(name) for name in ("scheduler", "scaler", "loader")}
            options["resumed"] = resume(model, optimizer, self._resume, **kept)
            check()
        recorder = flight_recorder(model, optimizer, self._path, **options)
        recorder.start()
        self.recorder = recorder
        start = options.get("resumed")
        if RECREATIONS:
            start = RECREATIONS[-1].saved
            check()
        if start is None:
            return None
        if options.get("loader") is not None:
            options["loader"].count_epochs()
        return int(start.step)

    def end(self, error: BaseException | None = None) -> None:
        """End the run, if one is active; `error` is that of a training that failed."""
        if self.recorder is not None:
            self.recorder.stop(error)
