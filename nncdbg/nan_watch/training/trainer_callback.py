"""The watch as a callback of the Trainer of Hugging Face transformers."""

from __future__ import annotations

from functools import wraps
from importlib import import_module
from typing import Any

from nncdbg.engine.errors import UsageError
from nncdbg.nan_watch.training.records import TrainingReport
from nncdbg.nan_watch.training.training_watch import TrainingWatch

try:
    _transformers: Any = import_module("transformers")
except ModuleNotFoundError as error:
    raise UsageError("TrainerCallback needs transformers", hint="pip install transformers") from error


class TrainerCallback(_transformers.TrainerCallback):  # type: ignore[misc]
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


def _end_watches_after(train: Any) -> Any:
    """Return `Trainer.train` that ends watches when it raises: the Trainer does not tell its callbacks."""

    @wraps(train)
    def watched_train(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return train(trainer, *args, **kwargs)
        except BaseException as error:
            for callback in trainer.callback_handler.callbacks:
                if isinstance(callback, TrainerCallback):
                    callback.close(error)
            raise

    return watched_train


_transformers.Trainer.train = _end_watches_after(_transformers.Trainer.train)
