"""`nncdbg.torch.resume`: continue a training from a checkpoint of its journal."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nncdbg.presentation.screen import Screen
from nncdbg.torch.journal.active_recreation import RECREATIONS
from nncdbg.torch.journal.restoring import restore
from nncdbg.torch.journal.states_of_ranks import state_of_rank
from nncdbg.torch.journal.training_objects import Stateful, TrainingObjects
from nncdbg.torch.named_models import Models, Optimizers


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where a training continues: at the start of `step`, in `epoch`, as the run `run` of the journal `path`.

    Steps and epochs are counted from 0; `epoch` is 0 for a checkpoint without a tracked loader.
    """

    path: str
    run: int
    step: int
    epoch: int

    def parent_in(self, path: str) -> int | None:
        """Return the run that a new run in the journal `path` is a fork of; None in another journal."""
        return self.run if os.path.realpath(path) == os.path.realpath(self.path) else None


def resume(
    model: Models,
    optimizer: Optimizers,
    address: str,
    *,
    scheduler: Stateful | Sequence[Stateful] | None = None,
    scaler: Stateful | None = None,
    loader: Any = None,
) -> Resumed:
    """Restore the state of a training from a journal, and return where it continues.

    `address` is that of a step: ``run.db@38``, ``run.db#2@38``, ``run.db@epoch:3``, ``run.db@nan``, or
    ``run.db`` for the last checkpoint.  The last checkpoint at or before that step is used.  Parameters,
    buffers, moments, options of optimizers, schedulers, the gradient scaler, the states of the random
    generators and the position of the loader are those of the run, so that all that follows has the same
    bits.  `loader` is a `track_loader`; it continues in its next epoch.

    In a training on several ranks, all ranks call this with the same address.  Each reads its own journal,
    and all continue at the last step of which all have a checkpoint.

    Under `nncdbg record --at`, the address is that of the command.

    Raises UsageError, and changes nothing, if the objects do not fit the checkpoint, or if another rank
    cannot resume; LoadError for a file that is not a journal.
    """
    objects = TrainingObjects(model, optimizer, scheduler=scheduler, scaler=scaler, loader=loader)
    if RECREATIONS:
        RECREATIONS[-1].begin(objects)
        recreated = RECREATIONS[-1].saved
        return Resumed(recreated.address.file, recreated.run, recreated.step, recreated.epoch)
    saved = state_of_rank(address)
    restore(objects, saved.position, saved.tensors, str(saved))
    resumed = Resumed(saved.address.file, saved.run, saved.step, saved.epoch)
    screen = Screen()
    screen.note(f"the training continues at step {resumed.step} of run {resumed.run} in {resumed.path}")
    if loader is not None and saved.epoch > 0:
        for each in loader.not_restored():
            screen.note(f"the following batches may differ: {each}")
    return resumed
