"""The watch as a callback of the Trainer of Hugging Face transformers."""

from __future__ import annotations

from typing import Any

from nncdbg.nan_watch.training.records import TrainingReport
from nncdbg.nan_watch.training.watching import TrainingWatch
from nncdbg.torch.libraries import trainer_callback_class


class TrainerCallback(trainer_callback_class("TrainerCallback")):  # type: ignore[misc]
    """Watches the training of a `Trainer`: ``Trainer(..., callbacks=[nncdbg.torch.TrainerCallback()])``.

    Options are those of `nncdbg.torch.watch`.  The watch ends when `Trainer.train` ends or raises.
    """

    def __init__(self, **options: Any) -> None:
        self._watch = TrainingWatch(**options)

    @property
    def report(self) -> TrainingReport:
        """The report of this training, or of the last one."""
        return self._watch.report

    def close(self, error: BaseException | None = None) -> None:
        """End the watch, if it is active; `error` is that of a training that failed."""
        self._watch.end(error)

    def on_train_begin(self, args: Any, state: Any, control: Any, **trained: Any) -> None:
        self._watch.begin(trained["model"], trained["optimizer"])

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._watch.end()
