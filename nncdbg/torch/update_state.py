"""The state of an optimizer before an update, so that the update can run again."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from nncdbg.torch.named_models import Models
from nncdbg.torch.recorded_step import RecordedStep
from nncdbg.torch.step_call import tensors_in
from nncdbg.torch.step_recording import record
from nncdbg.torch.tensor_copies import TensorCopies


class UpdateState:
    """Copies of the parameters and moments of an optimizer, and its options."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = weakref.proxy(optimizer)
        self._groups: Sequence[dict[str, Any]] = ()
        self._states: dict[Any, dict[str, Any]] = {}
        self._copies = TensorCopies(())
        self.update()

    def update(self) -> None:
        """Copy everything as it is now."""
        optimizer = self._optimizer
        self._groups = [dict(group) for group in optimizer.param_groups]
        self._states = {parameter: dict(state) for parameter, state in optimizer.state.items()}
        self._copies.update([*tensors_in([self._groups, [*self._states.values()]])])

    def restore(self) -> None:
        """Make parameters, moments and options as they were."""
        state = self._optimizer.state
        state.clear()
        state.update({parameter: dict(kept) for parameter, kept in self._states.items()})
        for group, kept in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.clear()
            group.update(kept)
        self._copies.restore()


def record_update(
    before: UpdateState, optimizer: torch.optim.Optimizer, models: Models, evaluated: Sequence[Any] = ()
) -> RecordedStep:
    """Record an update again, from the state before it; everything is as before afterwards.

    Gradients must be those of the update, and `evaluated` has the result of its closure, if it has one.
    Raises what the update raises.
    """
    closure = [lambda: evaluated[0]] if evaluated else []
    after = UpdateState(optimizer)
    before.restore()
    try:
        with record(models, optimizer) as recorded:
            optimizer.step(*closure)
        return recorded
    finally:
        after.restore()
