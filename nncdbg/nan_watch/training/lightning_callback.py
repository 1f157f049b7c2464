"""The watch as a callback of Lightning."""

from __future__ import annotations

from typing import Any

from nncdbg.nan_watch.training.records import TrainingReport
from nncdbg.nan_watch.training.watching import TrainingWatch
from nncdbg.torch.libraries import lightning_callback_class


class LightningCallback(lightning_callback_class("LightningCallback")):  # type: ignore[misc]
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
