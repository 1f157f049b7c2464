"""A flight recorder that begins and ends with the training of another library, for its callbacks."""

from __future__ import annotations

import os
from typing import Any

from nncdbg.engine.errors import UsageError
from nncdbg.torch.journal.flight_recorder import FlightRecorder, flight_recorder
from nncdbg.torch.named_models import Models, Optimizers


class RecordedTraining:
    """The recorder of one training; `options` are those of `nncdbg.torch.flight_recorder`."""

    def __init__(self, path: str | os.PathLike[str], options: dict[str, Any]) -> None:
        if "loader" in options:
            raise UsageError(
                "a callback takes no loader: the library fetches batches before their step",
                hint="leave it out",
            )
        self.recorder: FlightRecorder | None = None
        """The recorder of this training, or of the last one."""
        self._path = path
        self._options = options

    def begin(self, model: Models, optimizer: Optimizers, **objects: Any) -> None:
        """Record a training.  Raises UsageError for wrong options, and inside of a watch."""
        recorder = flight_recorder(model, optimizer, self._path, **{**objects, **self._options})
        recorder.start()
        self.recorder = recorder

    def end(self, error: BaseException | None = None) -> None:
        """End the run, if one is active; `error` is that of a training that failed."""
        if self.recorder is not None:
            self.recorder.stop(error)
