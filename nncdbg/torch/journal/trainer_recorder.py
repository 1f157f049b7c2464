"""The flight recorder as a callback of the Trainer of Hugging Face transformers."""

from __future__ import annotations

import os
from typing import Any

from nncdbg.torch.journal.flight_recorder import FlightRecorder
from nncdbg.torch.journal.recorded_training import RecordedTraining
from nncdbg.torch.libraries import trainer_callback_class


class TrainerRecorder(trainer_callback_class("TrainerRecorder")):  # type: ignore[misc]
    """Records the training of a `Trainer`: ``Trainer(callbacks=[nncdbg.torch.TrainerRecorder("run.db")])``.

    Options are those of `nncdbg.torch.flight_recorder`, but for the loader.  The run ends when
    `Trainer.train` ends or raises.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        self._training = RecordedTraining(path, options)

    @property
    def recorder(self) -> FlightRecorder | None:
        """The recorder of this training, or of the last one; None before the first."""
        return self._training.recorder

    def close(self, error: BaseException | None = None) -> None:
        """End the run, if one is active; `error` is that of a training that failed."""
        self._training.end(error)

    def on_train_begin(self, args: Any, state: Any, control: Any, **trained: Any) -> None:
        self._training.begin(trained["model"], trained["optimizer"], scheduler=trained.get("lr_scheduler"))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._training.end()
