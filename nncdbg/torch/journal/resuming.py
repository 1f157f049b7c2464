"""`nncdbg.torch.resume`: continue a training from a checkpoint of its journal."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import nncdbg.journal
from nncdbg.engine.errors import UsageError
from nncdbg.opening.journal.reopening import step_of
from nncdbg.opening.journal_address import Address, read_address
from nncdbg.presentation.screen import Screen
from nncdbg.torch.journal.restoring import restore
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


@dataclass(frozen=True, slots=True)
class SavedState:
    """A checkpoint of the run `run` of a journal, with its tensors in memory."""

    address: Address
    run: int
    step: int
    epoch: int
    position: Mapping[str, Any]
    tensors: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.address.file}#{self.run}@{self.step}"


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

    Raises UsageError, and changes nothing, if the objects do not fit the checkpoint; LoadError for a file
    that is not a journal.
    """
    objects = TrainingObjects(model, optimizer, scheduler=scheduler, scaler=scaler, loader=loader)
    saved = saved_state(address)
    restore(objects, saved.position, saved.tensors, str(saved))
    resumed = Resumed(saved.address.file, saved.run, saved.step, saved.epoch)
    screen = Screen()
    screen.note(f"the training continues at step {resumed.step} of run {resumed.run} in {resumed.path}")
    if loader is not None and saved.epoch > 0:
        for each in loader.not_restored():
            screen.note(f"the following batches may differ: {each}")
    return resumed


def saved_state(text: str) -> SavedState:
    """Return the last checkpoint at or before the address in a text.

    Raises UsageError without a checkpoint, LoadError for a file that is not a journal.
    """
    address = read_address(text) or Address(text)
    with nncdbg.journal.open(address.file) as journal:
        run = journal.run(address.run)
        if run.kind != "torch":
            raise UsageError(
                f"{text}: run {run.number} is of a program in graph text",
                hint=f"open it with `nncdbg {text}`",
            )
        step = step_of(journal, run, address) if address.at_step else run.steps
        record = journal.nearest(run, step)
        if record is None:
            raise UsageError(
                f"{text}: there is no checkpoint at or before step {step}",
                hint=f"{_listed([each.step for each in journal.checkpoints(run)])}",
            )
        read = journal.read(record)
        return SavedState(address, run.number, read.step, read.epoch or 0, read.position, dict(read.tensors))


def _listed(steps: list[int]) -> str:
    if not steps:
        return "record with checkpoint_every=50 to have some"
    return f"there are checkpoints at the steps {', '.join(map(str, steps[:10]))}"
