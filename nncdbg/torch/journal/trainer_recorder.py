"""The flight recorder as a callback of the Trainer of Hugging Face transformers."""

from __future__ import annotations

import os
from typing import Any

from nncdbg.errors import UsageError
from nncdbg.torch.journal.flight_recorder import FlightRecorder, RecordedTraining
from nncdbg.torch.journal.tracked_loader import TrackedLoader
from nncdbg.torch.libraries import trainer_callback_class


class TrainerRecorder(trainer_callback_class("TrainerRecorder")):  # type: ignore[misc]
    """Records the training of a `Trainer`: ``Trainer(callbacks=[nncdbg.torch.TrainerRecorder("run.db")])``.

    Options are those of `nncdbg.torch.flight_recorder`, but for the loader: a `track_loader` that
    `Trainer.get_train_dataloader` returns is used.  A training with it can continue with
    ``resume="run.db@38"``, an address as for `nncdbg.torch.resume`, and with the arguments of the first run:
    the Trainer counts on from step 38, but counts epochs from 0.  The run ends when `Trainer.train` ends or
    raises.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        if "loader" in options:
            raise UsageError(
                "TrainerRecorder takes no loader: the Trainer creates its own",
                hint="override get_train_dataloader of the Trainer, and return "
                "nncdbg.torch.track_loader(super().get_train_dataloader())",
            )
        self._training = RecordedTraining(path, options)
        self.trainer: Any = None
        """The trainer whose `train` runs."""

    @property
    def recorder(self) -> FlightRecorder | None:
        """The recorder of this training, or of the last one; None before the first."""
        return self._training.recorder

    def close(self, error: BaseException | None = None) -> None:
        """End the run, if one is active; `error` is that of a training that failed."""
        self._training.end(error)

    def on_train_begin(self, args: Any, state: Any, control: Any, **trained: Any) -> None:
        loader = trained.get("train_dataloader")
        loader = loader if isinstance(loader, TrackedLoader) else None
        step = self._training.begin(
            trained["model"],
            trained["optimizer"],
            scheduler=trained.get("lr_scheduler"),
            scaler=getattr(self.trainer.accelerator, "scaler", None),
            loader=loader,
            check=lambda: _check_accumulation(loader, args.gradient_accumulation_steps),
        )
        if step is not None:
            state.global_step = step
            # Averages of the log begin here.
            self.trainer._globalstep_last_logged = self.trainer._initial_global_step = step

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._training.end()


def _check_accumulation(loader: TrackedLoader | None, batches: int) -> None:
    """Raise UsageError if the Trainer, which counts batches from the restored one, would leave out an update.

    It updates after each `batches` batches, and after the last one of a whole epoch.
    """
    if loader is not None and loader.batches_to_skip and len(loader) % batches:
        raise UsageError(
            f"the Trainer cannot continue inside of an epoch: its {len(loader)} batches are no multiple of "
            f"the {batches} that are accumulated",
            hint="continue at the start of an epoch, such as run.db@epoch:3",
        )
