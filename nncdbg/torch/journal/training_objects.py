"""The objects of a training whose state a checkpoint has: models, optimizers, schedulers, scaler, loader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from nncdbg.engine.errors import UsageError
from nncdbg.torch.journal.tracked_loader import TrackedLoader
from nncdbg.torch.named_models import Models, Optimizers, listed_optimizers, named_models, own_tensors
from nncdbg.torch.trained import parameters_of

Stateful: TypeAlias = Any
"""An object with `state_dict` and `load_state_dict`, such as a scheduler of learning rates."""


class TrainingObjects:
    """The objects of one training, as `nncdbg.torch.flight_recorder` and `nncdbg.torch.resume` take them.

    Raises UsageError for objects of other types.
    """

    def __init__(
        self,
        model: Models,
        optimizer: Optimizers,
        *,
        scheduler: Stateful | Sequence[Stateful] | None = None,
        scaler: Stateful | None = None,
        loader: Any = None,
    ) -> None:
        self.models: Mapping[str, torch.nn.Module] = {
            name: _inside_of_parallel(each) for name, each in named_models(model).items()
        }
        self.optimizers = listed_optimizers(optimizer)
        self.schedulers = _listed(scheduler)
        self.scaler = scaler
        self.loader = loader
        for each in (*self.schedulers, *([] if scaler is None else [scaler])):
            if not hasattr(each, "state_dict") or not hasattr(each, "load_state_dict"):
                raise UsageError(
                    f"{type(each).__name__} is no scheduler or scaler: it lacks state_dict or load_state_dict",
                    hint="pass the objects themselves: scheduler=scheduler, scaler=scaler",
                )
        if loader is not None and not isinstance(loader, TrackedLoader):
            raise UsageError(
                f"loader must be a tracked loader, not {type(loader).__name__}",
                hint="loader = nncdbg.torch.track_loader(loader), before the loop iterates over it",
            )

    def named(self) -> dict[str, torch.Tensor]:
        """Return parameters (``state/fc.weight``) and buffers (``buffer/norm.running_mean``) by name."""
        buffers = {id(each) for model in self.models.values() for each in model.buffers()}
        return {
            f"{'buffer' if id(tensor) in buffers else 'state'}/{name}": tensor
            for name, tensor in own_tensors(self.models)
        }

    def names_of_parameters(self) -> dict[int, str]:
        """Return the name of each parameter of the optimizers by identity.

        One that no model has is ``parameter0``, by its place in its optimizer.
        """
        names = {id(tensor): name for name, tensor in own_tensors(self.models)}
        for index, optimizer in enumerate(self.optimizers):
            prefix = f"optimizer{index}." if index else ""
            for number, parameter in enumerate(parameters_of(optimizer)):
                names.setdefault(id(parameter), f"{prefix}parameter{number}")
        return names


def _listed(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, Iterable) else [given]


def _inside_of_parallel(model: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside of DistributedDataParallel, so that names are those of the plain module."""
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return _inside_of_parallel(model.module)
    return model
