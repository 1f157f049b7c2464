"""The flight recorder as a callback of Lightning."""

from __future__ import annotations

import os
from typing import Any

from nncdbg.torch.journal.flight_recorder import FlightRecorder, RecordedTraining
from nncdbg.torch.libraries import lightning_callback_class


class LightningRecorder(lightning_callback_class("LightningRecorder")):  # type: ignore[misc]
    """Records the training of a `Trainer`: ``Trainer(callbacks=[nncdbg.torch.LightningRecorder("run.db")])``.

    Options are those of `nncdbg.torch.flight_recorder`.  Schedulers and the gradient scaler are those of the
    trainer.  `loader` is the `track_loader` that `Trainer.fit` gets; a training with it can continue with
    ``resume="run.db@38"``, an address as for `nncdbg.torch.resume`.  The trainer counts epochs from 0 then.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        super().__init__()
        self._training = RecordedTraining(path, options)

    @property
    def recorder(self) -> FlightRecorder | None:
        """The recorder of this training, or of the last one; None before the first."""
        return self._training.recorder

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        continued = self._training.begin(
            pl_module,
            trainer.optimizers,
            scheduler=[each.scheduler for each in trainer.lr_scheduler_configs],
            scaler=getattr(trainer.precision_plugin, "scaler", None),
        )
        if continued is not None:
            # Its first epoch began before this callback: begin it again, at the position that was restored.
            iter(trainer.fit_loop._data_fetcher)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._training.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._training.end(exception)
