"""The watch as a callback of the Trainer of Hugging Face transformers."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from nncdbg.engine.errors import UsageError
from nncdbg.nan_watch.training.records import TrainingReport
from nncdbg.nan_watch.training.training_watch import TrainingWatch

try:
    _base: Any = import_module("transformers").TrainerCallback
except ModuleNotFoundError as error:
    raise UsageError("TrainerCallback needs transformers", hint="pip install transformers") from error


class TrainerCallback(_base):  # type: ignore[misc]
    """Watches the training of a `Trainer`: ``Trainer(..., callbacks=[nncdbg.torch.TrainerCallback()])``.

    Options are those of `nncdbg.torch.watch`.  The Trainer does not report exceptions: `close` ends the
    watch after one other than NaNFound, and so does the next training.
    """

    def __init__(self, **options: Any) -> None:
        self._watch = TrainingWatch(**options)

    @property
    def report(self) -> TrainingReport:
        """The report of this training, or of the last one."""
        return self._watch.report

    def close(self) -> None:
        """End the watch, if it is active."""
        self._watch.end()

    def on_train_begin(self, args: Any, state: Any, control: Any, **trained: Any) -> None:
        self._watch.begin(trained["model"], trained["optimizer"])

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._watch.end()
