"""The objects of a training: copies of their state at a step's start, and the way back."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch

from nncdbg.engine.ops.aten.arrays import as_tensor, host_array
from nncdbg.errors import UsageError
from nncdbg.text.counting import counted
from nncdbg.torch.journal.state_trees import as_json, from_json, random_as_json, restore_random
from nncdbg.torch.journal.tracked_loader import LoaderPosition, TrackedLoader
from nncdbg.torch.named_models import (
    Models,
    Optimizers,
    inside_of_parallel,
    listed_optimizers,
    named_models,
    own_tensors,
    parameters_of,
)
from nncdbg.torch.step_state import RandomState, TensorCopies

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
            name: inside_of_parallel(each) for name, each in named_models(model).items()
        }
        self.optimizers = listed_optimizers(optimizer)
        self.schedulers: list[Any] = [] if scheduler is None else [scheduler]
        if isinstance(scheduler, Iterable):
            self.schedulers = list(scheduler)
        self.scaler = scaler
        self.loader = loader
        for each in (*self.schedulers, *([] if scaler is None else [scaler])):
            if not hasattr(each, "state_dict") or not hasattr(each, "load_state_dict"):
                raise UsageError(
                    f"{type(each).__name__} is no scheduler or scaler: it has no load_state_dict",
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


# -- the start of a step -------------------------------------------------------------------


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


# -- restoring from a checkpoint -----------------------------------------------------------

_LISTED = 5
"""Differences that an error lists."""


def restore(
    objects: TrainingObjects,
    position: Mapping[str, Any],
    tensors: Mapping[str, Any],
    address: str,
    *,
    kept_batches: bool = False,
) -> None:
    """Give models, optimizers, schedulers, scaler, loader and random generators the state of a checkpoint.

    With `kept_batches`, the loader returns the batches that the checkpoint has by value, if any, in place of
    its own ones.

    Raises UsageError, and changes nothing, if they do not fit it, or if a `load_state_dict` raises.
    """
    differences = [*_differences(objects, position, tensors)]
    if differences:
        more = len(differences) - _LISTED
        listed = "; ".join(differences[:_LISTED]) + (f"; and {more} more" if more > 0 else "")
        raise UsageError(
            f"{address} is a checkpoint of another training: {listed}",
            hint="create models, optimizers and loaders as in the run that wrote it",
        )
    names = objects.names_of_parameters()
    moments = [
        _moments(optimizer, saved["state"], names, tensors)
        for optimizer, saved in zip(objects.optimizers, position["optimizers"], strict=True)
    ]
    _load_states(
        [(each, from_json(kept, tensors)) for _, each, kept in _stateful(objects, position)], address
    )
    random = from_json(position["random"], tensors)
    with torch.no_grad():
        for name, tensor in objects.named().items():
            tensor.copy_(as_tensor(np.asarray(tensors[name])))
    for optimizer, saved, states in zip(objects.optimizers, position["optimizers"], moments, strict=True):
        optimizer.state.clear()
        optimizer.state.update(states)
        for group, kept in zip(optimizer.param_groups, saved["groups"], strict=True):
            group.update(from_json(kept["options"], tensors))
    if objects.loader is not None:
        kept = position.get("batches", ()) if kept_batches else ()
        objects.loader.restore(
            from_json(position["loader"], tensors),
            lambda: restore_random(random),
            [from_json(each, tensors) for each in kept],
        )
    restore_random(random)


def _differences(
    objects: TrainingObjects, position: Mapping[str, Any], tensors: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what the objects have in another way than a checkpoint."""
    named = objects.named()
    saved = [name for name in tensors if name.startswith(("state/", "buffer/"))]
    for name in saved:
        if name not in named:
            yield f"{_short(name)} is only in the checkpoint"
    for name, tensor in named.items():
        if name not in tensors:
            yield f"{_short(name)} is not in the checkpoint"
            continue
        kept = np.asarray(tensors[name])
        if kept.shape != tuple(tensor.shape):
            yield f"{_short(name)} has shape {tuple(tensor.shape)}, and {kept.shape} in the checkpoint"
        elif (dtype := as_tensor(kept[..., :0] if kept.ndim else kept).dtype) != tensor.dtype:
            yield f"{_short(name)} is {_dtype(tensor.dtype)}, and {_dtype(dtype)} in the checkpoint"
    yield from _differing_optimizers(objects, position["optimizers"], tensors)
    yield from _differing_kinds("scheduler", objects.schedulers, position["schedulers"])
    for word, given, kept in (
        ("scaler", objects.scaler, position["scaler"]),
        ("loader", objects.loader, position["loader"]),
    ):
        if (given is None) != (kept is None):
            has, passed = "no" if kept is None else "a", "none" if given is None else "one"
            yield f"it has {has} {word}, and you passed {passed}"
    for name, each, kept in _stateful(objects, position):
        own, state = each.state_dict(), from_json(kept, tensors)
        yield from _differing_states(name, own, state)
        for key in state:
            if key not in own and callable(getattr(type(each), str(key), None)):
                yield f"{name}.{key} is a method, and a value in the checkpoint"
    devices = len(position["random"]["devices"])
    if devices and devices != (here := torch.cuda.device_count()):
        yield f"it has the random states of {counted(devices, 'device')}, and this machine has {here}"
    if objects.loader is not None and position["loader"] is not None:
        yield from objects.loader.differences(position["loader"])


def _stateful(objects: TrainingObjects, position: Mapping[str, Any]) -> Iterator[tuple[str, Stateful, Any]]:
    """Yield schedulers and scaler: the class, the object and its state in a checkpoint."""
    for each, saved in zip(objects.schedulers, position["schedulers"], strict=False):
        yield type(each).__name__, each, saved["state"]
    if objects.scaler is not None and position["scaler"] is not None:
        yield type(objects.scaler).__name__, objects.scaler, position["scaler"]


def _differing_states(name: str, own: Any, kept: Any) -> Iterator[str]:
    """Yield the entries of two states that differ in type or shape; either may be None.

    Entries that only one has are no difference: an object may add some later.
    """
    if own is None or kept is None:
        return
    here, there = _kind(own), _kind(kept)
    if here != there:
        yield f"{name} is {here}, and {there} in the checkpoint"
    elif isinstance(own, Mapping):
        for key in own:
            if key in kept:
                yield from _differing_states(f"{name}.{key}", own[key], kept[key])


def _kind(value: Any) -> str:
    """Return the kind of an entry of a state: a number may be a tensor with one element."""
    if isinstance(value, (torch.Tensor, np.ndarray)) and prod(value.shape) != 1:
        return f"a tensor of shape {tuple(value.shape)}"
    kinds: dict[str, Any] = {
        "a number": (int, float, np.generic, torch.Tensor, np.ndarray),
        "text": str,
        "a dictionary": Mapping,
        "a list": (list, tuple, set, frozenset),
    }
    return next((kind for kind, types in kinds.items() if isinstance(value, types)), type(value).__name__)


def _differing_optimizers(
    objects: TrainingObjects, saved: list[Any], tensors: Mapping[str, Any]
) -> Iterator[str]:
    yield from _differing_kinds("optimizer", objects.optimizers, saved)
    if len(saved) != len(objects.optimizers):
        return
    names = objects.names_of_parameters()
    for optimizer, each in zip(objects.optimizers, saved, strict=True):
        ours = [[names[id(one)] for one in group["params"]] for group in optimizer.param_groups]
        theirs = [group["parameters"] for group in each["groups"]]
        if len(ours) != len(theirs):
            yield f"{each['class']} has {len(ours)} groups, and {len(theirs)} in the checkpoint"
        for number, (here, there) in enumerate(zip(ours, theirs, strict=False)):
            if here != there:
                yield f"group {number} of {each['class']} has other parameters in the checkpoint"
        for number, (group, kept) in enumerate(zip(optimizer.param_groups, each["groups"], strict=False)):
            name, options = f"group {number} of {each['class']}", from_json(kept["options"], tensors)
            yield from _differing_states(name, {key: group[key] for key in group if key != "params"}, options)
            if "params" in options:
                yield f"{name} has parameters among its options in the checkpoint"
        yield from _differing_moments(optimizer, each["state"], names, tensors)


_OTHER_SHAPES = (torch.optim.LBFGS, torch.optim.Adafactor)
"""Optimizers whose moments may differ from their parameters in shape."""


def _differing_moments(
    optimizer: torch.optim.Optimizer,
    saved: Mapping[str, Any],
    names: Mapping[int, str],
    tensors: Mapping[str, Any],
) -> Iterator[str]:
    """Yield the moments that have not the shape of their parameter, which a fused kernel does not check."""
    if isinstance(optimizer, _OTHER_SHAPES) or not type(optimizer).__module__.startswith("torch.optim"):
        return
    for parameter in parameters_of(optimizer):
        name = names[id(parameter)]
        for key, value in from_json(saved.get(name, {}), tensors).items():
            if isinstance(value, torch.Tensor) and value.shape not in (parameter.shape, ()):
                ours, theirs = tuple(parameter.shape), tuple(value.shape)
                yield f"{name} has shape {ours}, and its {key} has {theirs} in the checkpoint"


def _differing_kinds(word: str, given: list[Any], saved: list[Any]) -> Iterator[str]:
    if len(given) != len(saved):
        yield f"it has {len(saved)} {word}s, and you passed {len(given)}"
        return
    for each, kept in zip(given, saved, strict=True):
        if type(each).__name__ != kept["class"]:
            yield f"the {word} is {type(each).__name__}, and {kept['class']} in the checkpoint"


def _load_states(loaded: list[tuple[Stateful, Any]], address: str) -> None:
    """Give schedulers and scaler their states; if one raises, give back those that they had.

    Raises UsageError.
    """
    before = [(each, copy.deepcopy(each.state_dict())) for each, _ in loaded]
    for each, state in loaded:
        try:
            each.load_state_dict(state)
        except Exception as error:  # noqa: BLE001  of an object of the user
            for other, kept in before:
                with suppress(Exception):
                    other.load_state_dict(kept)
            kind, keys = type(each).__name__, ", ".join(map(str, state)) or "no entries"
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise UsageError(
                f"{address}: load_state_dict of {kind} failed: {why}; the checkpoint has {keys}",
                hint=f"create the {kind} as in the run that wrote the checkpoint",
            ) from None


def _moments(
    optimizer: torch.optim.Optimizer,
    saved: Mapping[str, Any],
    names: Mapping[int, str],
    tensors: Mapping[str, Any],
) -> dict[torch.Tensor, dict[str, Any]]:
    """Return the moments of an optimizer by parameter.

    Not for `load_state_dict`, which rounds moments to the dtype of the parameter.
    """
    return {
        parameter: {
            key: _moved(value, parameter, optimizer if key == "step" else None)
            for key, value in from_json(saved[names[id(parameter)]], tensors).items()
        }
        for parameter in parameters_of(optimizer)
        if names[id(parameter)] in saved
    }


def _moved(value: Any, parameter: torch.Tensor, counts: torch.optim.Optimizer | None) -> Any:
    """Return a moment in memory of its own, on the device of its parameter.

    The count of steps of the optimizer `counts` is on the CPU unless its options say otherwise.
    """
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(each, parameter, counts) for each in value)
    if not isinstance(value, torch.Tensor):
        return value
    on_host = counts is not None and not any(
        group.get("capturable") or group.get("fused") for group in counts.param_groups
    )
    moved = value.to(value.device if on_host else parameter.device, copy=True)
    if moved.shape == parameter.shape and moved.stride() != parameter.stride():
        moved = torch.empty_like(parameter, dtype=moved.dtype).copy_(moved)
    return moved


def _short(name: str) -> str:
    return name.partition("/")[2]


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
