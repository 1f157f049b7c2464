"""A flight recorder that begins and ends with the training of another library, for its callbacks."""

from __future__ import annotations

import os
from typing import Any

from nncdbg.engine.errors import UsageError
from nncdbg.torch.journal.active_recreation import RECREATIONS
from nncdbg.torch.journal.flight_recorder import FlightRecorder, flight_recorder
from nncdbg.torch.journal.resuming import resume
from nncdbg.torch.named_models import Models, Optimizers


class RecordedTraining:
    """The recorder of one training; `options` are those of `nncdbg.torch.flight_recorder`.

    With `takes_loader`, `loader` and `resume`, the address to continue at, are options as well.
    """

    def __init__(
        self, path: str | os.PathLike[str], options: dict[str, Any], *, takes_loader: bool = False
    ) -> None:
        self._resume = options.pop("resume", None) if takes_loader else None
        if "loader" in options and not takes_loader:
            raise UsageError(
                "a callback takes no loader: the library fetches batches before their step",
                hint="leave it out",
            )
        self.recorder: FlightRecorder | None = None
        """The recorder of this training, or of the last one."""
        self._path = path
        self._options = options

    def begin(self, model: Models, optimizer: Optimizers, **objects: Any) -> bool:
        """Record a training; return whether it continues at a checkpoint.

        Raises UsageError for wrong options, and inside of a watch.
        """
        options = {**objects, **self._options}
        if self._resume is not None:
            kept = {name: options.get(name) for name in ("scheduler", "scaler", "loader")}
            options["resumed"] = resume(model, optimizer, self._resume, **kept)
        recorder = flight_recorder(model, optimizer, self._path, **options)
        recorder.start()
        self.recorder = recorder
        return self._resume is not None or bool(RECREATIONS)

    def end(self, error: BaseException | None = None) -> None:
        """End the run, if one is active; `error` is that of a training that failed."""
        if self.recorder is not None:
            self.recorder.stop(error)
