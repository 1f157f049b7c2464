"""The watch as a callback of Lightning."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from nncdbg.engine.errors import UsageError
from nncdbg.nan_watch.training.records import TrainingReport
from nncdbg.nan_watch.training.training_watch import TrainingWatch


def _base() -> Any:
    """Return the class of callbacks in the package that the user imported, of the two that Lightning has."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda each: each not in sys.modules):
        try:
            return import_module(name).Callback
        except ModuleNotFoundError as missing:
            if not name.startswith(missing.name or "?"):
                raise
    raise UsageError("LightningCallback needs Lightning", hint="pip install lightning")


class LightningCallback(_base()):  # type: ignore[misc]
    """Watches the training of a `Trainer`: ``Trainer(callbacks=[nncdbg.torch.LightningCallback()])``.

    Options are those of `nncdbg.torch.watch`.  With automatic optimization, a step with NaN or Inf runs
    again from `training_step` on.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._watch = TrainingWatch(**options)

    @property
    def report(self) -> TrainingReport:
        """The report of this training, or of the last one."""
        return self._watch.report

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._watch.begin(pl_module, trainer.optimizers)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._watch.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._watch.end(exception)
