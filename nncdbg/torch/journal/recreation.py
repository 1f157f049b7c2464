"""A step of an earlier run that a script re-creates and records: its state, and the losses to compare."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

import nncdbg.journal
from nncdbg.engine.ops.aten.internals import compiling_nothing
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.opening.journal.reopening import steps_of
from nncdbg.text.counting import counted
from nncdbg.torch.hooks import on_backward
from nncdbg.torch.journal.resuming import SavedState, state_to_record
from nncdbg.torch.journal.tracked_loader import TrackedLoader
from nncdbg.torch.journal.tracking import RECREATIONS, scalar_losses, total_loss
from nncdbg.torch.journal.training_objects import TrainingObjects, restore
from nncdbg.torch.named_models import live_objects, models_of
from nncdbg.torch.script import ScriptRecorder, on_module_call
from nncdbg.torch.step_call import tensors_in


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
        schedulers = live_objects(torch.optim.lr_scheduler.LRScheduler)
        # Those of a SequentialLR, for example.
        inside = {id(each) for one in schedulers for each in getattr(one, "_schedulers", ())}
        self._restore(
            TrainingObjects(
                {name: each for name, each in models_of(optimizers).items() if self._has(name, each)},
                optimizers,
                scheduler=[each for each in schedulers if id(each) not in inside],
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


# -- the recorder of the step --------------------------------------------------------------


class RecreatedStepRecorder(ScriptRecorder):
    """Counts the steps of a script from the checkpoint on, and compares their losses with the journal."""

    def __init__(self, recreation: Recreation) -> None:
        super().__init__(recreation.step - recreation.saved.step + 1)
        self.shown = recreation.step
        self._recreation = recreation
        self._counting = False
        self._losses: list[Any] = []
        """The losses of the backward passes of the step so far."""

    def __enter__(self) -> None:
        self._hooks.enter_context(compiling_nothing())
        self._recreation.began = self._training_begins
        RECREATIONS.append(self._recreation)
        self._hooks.callback(RECREATIONS.remove, self._recreation)
        self._await_module()

    def title(self, script: str) -> str:
        saved = self._recreation.saved
        file = os.path.basename(saved.address.file)
        return f"step {self.shown} of run {saved.run} in {file}, re-created by {script}"

    @property
    def notes(self) -> tuple[str, ...]:
        found = super().notes if not self._late else ()
        return (*self._recreation.notes, *found)

    def missing(self, script: str) -> NncdbgError:
        if not self.ended:
            return super().missing(script)
        return UsageError(
            f"{script} ended {counted(self.ended, 'step')} after step {self._recreation.saved.step}: "
            f"there is no step {self.shown}",
            hint=f"use the arguments of the run: nncdbg log {self._recreation.saved.address.file}",
        )

    # -- the beginning of the training -------------------------------------------------------

    def _await_module(self) -> None:
        self._hooks.callback(on_module_call(self._module_called, self._thread))

    def _module_called(self) -> None:
        """Restore the objects of a script that passes none, before its first forward pass."""
        if self._recreation.objects is not None:
            return
        if not self._recreation.find():
            self._await_module()
        elif self.number == 1:
            self._begin()

    def _training_begins(self) -> None:
        if not self._counting:
            self._counting = True
            self._hooks.callback(on_backward(self._add_losses))
            self.count()
            return
        # The script passes its objects, after the steps began with those that were found.
        self._recording.close()
        self.step, self.ended, self._late, self._losses = None, 0, False, []
        if self.number == 1:
            self._hooks.callback(on_module_call(self._begin))

    # -- steps -------------------------------------------------------------------------------

    def _counts(self, optimizer: Any) -> bool:
        objects = self._recreation.objects
        return objects is not None and any(each is optimizer for each in objects.optimizers)

    def _add_losses(self, tensors: Any) -> None:
        evaluated_again = self._outermost is not None and self._losses  # By a closure of the optimizer.
        if not evaluated_again and self.here:
            self._losses += scalar_losses(tensors_in(tensors))

    def _step_ended(self) -> None:
        self._recreation.compare(self._losses)
        self._losses = []
