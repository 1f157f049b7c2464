"""The start of a step: copies of all that a restart needs, in memory that a later step uses again."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from nncdbg.engine.ops.aten.arrays import host_array
from nncdbg.torch.journal.random_states import random_as_json
from nncdbg.torch.journal.state_trees import as_json
from nncdbg.torch.journal.tracked_loader import LoaderPosition
from nncdbg.torch.journal.training_objects import TrainingObjects
from nncdbg.torch.step_state import RandomState
from nncdbg.torch.tensor_copies import TensorCopies


class KeptStart:
    """The state at the start of one step of a training.

    Parameters, buffers and moments are copied on their device, all at once, into the memory of the start that
    was kept here before.
    """

    def __init__(self, objects: TrainingObjects) -> None:
        self.step = -1
        """The number of the step from 0; -1 until `capture` has ended."""
        self.epoch: int | None = None
        self.saved = False
        """Whether a checkpoint has it."""
        self.batches: list[Any] = []
        """The batches of the step so far, if they are kept by value."""
        self._objects = objects
        self._owners = [
            owner
            for model in objects.models.values()
            for module in model.modules()
            for owner in (module._parameters, module._buffers)
        ]
        self._copies = TensorCopies(())
        self._states: Sequence[Mapping[Any, Mapping[str, Any]]] = ()
        """The state of each optimizer: its moments by parameter."""
        self._groups: Sequence[Sequence[Mapping[str, Any]]] = ()
        self._schedulers: Sequence[Any] = ()
        self._scaler: Any = None
        self._random: RandomState | None = None
        self._position: LoaderPosition | None = None

    def capture(self, step: int, random: RandomState, position: LoaderPosition | None) -> None:
        """Keep the state as it is now, at the start of a step."""
        objects = self._objects
        # A handler of SIGTERM may save the kept starts in the middle of this: it leaves this one out.
        self.step, self.saved, self.batches = -1, False, []
        self.epoch = None if position is None else position.epoch
        self._random, self._position = random, position
        self._states = [
            {parameter: dict(state) for parameter, state in optimizer.state.items()}
            for optimizer in objects.optimizers
        ]
        self._groups = [[dict(group) for group in each.param_groups] for each in objects.optimizers]
        self._schedulers = [copy.deepcopy(each.state_dict()) for each in objects.schedulers]
        self._scaler = None if objects.scaler is None else objects.scaler.state_dict()
        self._copies.update(self._tensors())
        self.step = step

    @property
    def size(self) -> int:
        """The bytes of the copies."""
        return self._copies.size

    def _tensors(self) -> list[Any]:
        """Return all tensors to copy, each once."""
        found = [each for owner in self._owners for each in owner.values() if each is not None]
        for states in self._states:
            for state in states.values():
                for value in state.values():
                    if isinstance(value, torch.Tensor):
                        found.append(value)
                    elif isinstance(value, (list, tuple)):  # L-BFGS has lists of directions.
                        found += [each for each in value if isinstance(each, torch.Tensor)]
        for groups in self._groups:
            for group in groups:
                found += [each for each in group.values() if isinstance(each, torch.Tensor)]
        return [
            each
            for each in {id(each): each for each in found}.values()
            if not torch.nn.parameter.is_lazy(each)
        ]

    def checkpoint(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the position, which is JSON, and the tensors by name as arrays that no later step changes.

        Raises UsageError for a state that JSON and tensors cannot express.
        """
        assert self._random is not None
        tensors: dict[str, Any] = dict(self._objects.named())
        position = {
            "optimizers": self._optimizers(tensors),
            "schedulers": [
                {
                    "class": type(each).__name__,
                    "state": as_json(state, f"collected/scheduler{index}", tensors),
                }
                for index, (each, state) in enumerate(
                    zip(self._objects.schedulers, self._schedulers, strict=True)
                )
            ],
            "scaler": as_json(self._scaler, "scaler/state", tensors),
            "random": random_as_json(self._random, "random/", tensors),
            "loader": None if self._position is None else self._position.as_json(tensors),
        }
        if self.batches:
            position["batches"] = as_json(self.batches, "collected/batches", tensors)
        copies = {id(tensor): content for tensor, content in self._copies.contents()}
        return position, {
            name: host_array(copies.get(id(each), each))
            for name, each in tensors.items()
            if not torch.nn.parameter.is_lazy(each)
        }

    def _optimizers(self, tensors: dict[str, Any]) -> list[Any]:
        """Return the states and options of the optimizers as JSON."""
        names = self._objects.names_of_parameters()
        result = []
        for index, optimizer in enumerate(self._objects.optimizers):
            state = {
                names[id(parameter)]: {
                    key: as_json(value, f"moment/{names[id(parameter)]}.{key}", tensors)
                    for key, value in kept.items()
                }
                for parameter, kept in self._states[index].items()
            }
            groups = [
                {
                    "parameters": [names[id(each)] for each in group["params"]],
                    "options": as_json(
                        {key: value for key, value in group.items() if key != "params"},
                        f"collected/optimizer{index}.group{number}",
                        tensors,
                    ),
                }
                for number, group in enumerate(self._groups[index])
            ]
            result.append({"class": type(optimizer).__name__, "state": state, "groups": groups})
        return result
