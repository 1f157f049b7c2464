"""A step of an earlier run that a script re-creates: the state at its start, and the losses to compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

import nncdbg.journal
from nncdbg.engine.errors import UsageError
from nncdbg.opening.journal.reopening import steps_of
from nncdbg.torch.found_models import live_objects, models_of
from nncdbg.torch.journal.losses import total_loss
from nncdbg.torch.journal.restoring import restore
from nncdbg.torch.journal.saved_state import SavedState
from nncdbg.torch.journal.states_of_ranks import state_to_record
from nncdbg.torch.journal.tracked_loader import TrackedLoader
from nncdbg.torch.journal.training_objects import TrainingObjects


class Recreation:
    """Restores a checkpoint when the training of a script begins, and compares the losses with the journal.

    The objects are those that the script passes to `nncdbg.torch.flight_recorder` or `resume`.  A script
    without them has its optimizers, models, schedulers, scaler and tracked loader found.
    """

    def __init__(self, saved: SavedState, losses: Mapping[int, float]) -> None:
        self.saved = saved
        self.step = saved.requested
        """The number of the step to re-create, in the run."""
        self._losses = losses
        """The losses in the journal by step."""
        self.next = saved.step
        """The number of the step that runs, or of the next one."""
        self.given = False
        """Whether the script passed the objects that were restored."""
        self.objects: TrainingObjects | None = None
        """The objects that were restored."""
        self.began: Callable[[], None] = lambda: None
        """Called when the training begins at the checkpoint, again if other objects were found before."""
        self.first_different: tuple[int, float, float] | None = None
        """The first step with another loss than in the journal: number, loss, loss in the journal."""
        self.compared = False
        """Whether the loss of the last step was compared with the journal."""

    def begin(self, objects: TrainingObjects) -> None:
        """Restore the objects that the script passes, unless it has passed some already.

        Raises UsageError if they do not fit the checkpoint.
        """
        if not self.given:
            self.given = True
            self._restore(objects, self.saved.position)

    def find(self, loader: TrackedLoader | None = None) -> bool:
        """Restore the objects that the script has, if it has an optimizer; return whether it has one.

        Without a tracked loader, the position in the data is that of the script.  Raises UsageError if they
        do not fit the checkpoint.
        """
        optimizers = live_objects(torch.optim.Optimizer)
        if not optimizers or self.objects is not None:
            return bool(optimizers)
        position = self.saved.position
        if loader is None:
            position = {**position, "loader": None}
        elif position["loader"] is None:
            loader = None
        self._restore(
            TrainingObjects(
                {name: each for name, each in models_of(optimizers).items() if self._has(name, each)},
                optimizers,
                scheduler=_outermost(live_objects(torch.optim.lr_scheduler.LRScheduler)),
                scaler=next(iter(live_objects(torch.amp.GradScaler)), None),
                loader=loader,
            ),
            position,
        )
        return True

    def _restore(self, objects: TrainingObjects, position: Mapping[str, Any]) -> None:
        restore(objects, position, self.saved.tensors, str(self.saved), kept_batches=True)
        self.objects = objects
        self.next = self.saved.step
        self.first_different = None
        self.began()

    def _has(self, name: str, model: torch.nn.Module) -> bool:
        """Return whether the checkpoint has parameters of a model."""
        prefix = f"{name}." if name else ""
        return any(
            f"state/{prefix}{parameter}" in self.saved.tensors for parameter, _ in model.named_parameters()
        )

    def compare(self, losses: list[Any]) -> None:
        """Compare the losses of the backward passes of a step that has ended with the journal."""
        number, self.next = self.next, self.next + 1
        kept = self._losses.get(number)
        self.compared = bool(losses) and kept is not None
        if not self.compared or self.first_different is not None:
            return
        assert self.objects is not None
        loss = float(total_loss(losses, self.objects.scaler))
        assert kept is not None
        if loss != kept and not (loss != loss and kept != kept):
            self.first_different = number, loss, kept

    @property
    def verdict(self) -> str:
        """How the losses compare with those of the journal, in one sentence."""
        saved, first = self.saved, self.first_different
        name = f"run {saved.run} of {saved.address.file}"
        if first is not None:
            number, loss, kept = first
            return (
                f"the loss of step {number} is {loss!r}, and {kept!r} in {name}: "
                f"they differ by {abs(loss - kept):.3g}"
            )
        if not self.compared:
            return f"the loss was not compared: {name} has no loss of step {self.step}"
        if self.step == saved.step:
            return f"the loss is that of {name}, bit for bit"
        return f"the losses of the steps {saved.step} to {self.step} are those of {name}, bit for bit"

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user must know of the step."""
        found = [self.verdict]
        if self.objects is not None and self.objects.loader is None:
            found.append("the batch is that of the script's own position: no tracked loader was restored")
        return tuple(found)


def recreation_of(text: str) -> Recreation:
    """Return the re-creation of the step at an address, such as ``run.db@38`` or ``run.db@nan``.

    Raises UsageError without such a step or without a checkpoint before it, LoadError for a file that is not
    a journal.
    """
    saved = state_to_record(text)
    if not saved.address.at_step:
        raise UsageError(f"{text} is a journal: name a step", hint=f"for example --at {text}@{saved.step}")
    with nncdbg.journal.open(saved.address.file) as journal:
        run = journal.run(saved.run)
        if run.status == "ended" and saved.requested >= run.steps:
            raise UsageError(
                f"run {run.number} has no step {saved.requested}", hint=f"it has {steps_of(run)}"
            )
        losses = {}
        if ("loss", "train") in journal.tracks(run):
            numbers, values = journal.values(run, "loss")
            losses = dict(zip(numbers.tolist(), values.tolist(), strict=True))
    return Recreation(saved, losses)


def _outermost(schedulers: list[Any]) -> list[Any]:
    """Leave out the schedulers inside of others, such as those of a SequentialLR."""
    inside = {id(each) for scheduler in schedulers for each in getattr(scheduler, "_schedulers", ())}
    return [each for each in schedulers if id(each) not in inside]
