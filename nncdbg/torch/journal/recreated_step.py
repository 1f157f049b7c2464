"""Record a step of an earlier run, which a script re-creates from a checkpoint of its journal."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from nncdbg.engine.errors import NncdbgError, UsageError
from nncdbg.engine.ops.aten.internals import compiling_nothing, not_compiled
from nncdbg.engine.text.counting import counted
from nncdbg.torch.journal.active_recreation import RECREATIONS
from nncdbg.torch.journal.losses import scalar_losses
from nncdbg.torch.journal.recreation import Recreation
from nncdbg.torch.script_recording import ScriptRecorder, on_module_call
from nncdbg.torch.step_call import tensors_in


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
            self._hooks.callback(_on_backward(self._add_losses))
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


def _on_backward(started: Callable[[Any], None]) -> Callable[[], None]:
    """Call `started` with the tensors of each backward pass after it; return how to end this."""
    original = torch.autograd.backward

    @not_compiled
    def backward(*args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        original(*args, **kwargs)
        started(args[0] if args else kwargs.get("tensors"))

    def restore() -> None:
        torch.autograd.backward = original

    torch.autograd.backward = backward
    return restore
