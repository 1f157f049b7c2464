"""Restore the objects of a training from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from nncdbg.engine.errors import UsageError
from nncdbg.engine.ops.aten.arrays import as_tensor
from nncdbg.torch.journal.random_states import restore_random
from nncdbg.torch.journal.state_trees import from_json
from nncdbg.torch.journal.training_objects import TrainingObjects
from nncdbg.torch.trained import parameters_of

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

    Raises UsageError, and changes nothing, if they do not fit it.
    """
    differences = [*_differences(objects, position, tensors)]
    if differences:
        raise UsageError(
            f"{address} is a checkpoint of another training: {_listed(differences)}",
            hint="create models, optimizers and loaders as in the run that wrote it",
        )
    with torch.no_grad():
        for name, tensor in objects.named().items():
            tensor.copy_(_tensor(tensors, name))
        names = objects.names_of_parameters()
        for optimizer, saved in zip(objects.optimizers, position["optimizers"], strict=True):
            _restore_optimizer(optimizer, saved, names, tensors)
    for scheduler, saved in zip(objects.schedulers, position["schedulers"], strict=True):
        scheduler.load_state_dict(from_json(saved["state"], tensors))
    if objects.scaler is not None:
        objects.scaler.load_state_dict(from_json(position["scaler"], tensors))
    random = from_json(position["random"], tensors)
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
    yield from _differing_optimizers(objects, position["optimizers"])
    yield from _differing_kinds("scheduler", objects.schedulers, position["schedulers"])
    for word, given, kept in (
        ("scaler", objects.scaler, position["scaler"]),
        ("loader", objects.loader, position["loader"]),
    ):
        if (given is None) != (kept is None):
            has, passed = "no" if kept is None else "a", "none" if given is None else "one"
            yield f"it has {has} {word}, and you passed {passed}"


def _differing_optimizers(objects: TrainingObjects, saved: list[Any]) -> Iterator[str]:
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


def _differing_kinds(word: str, given: list[Any], saved: list[Any]) -> Iterator[str]:
    if len(given) != len(saved):
        yield f"it has {len(saved)} {word}s, and you passed {len(given)}"
        return
    for each, kept in zip(given, saved, strict=True):
        if type(each).__name__ != kept["class"]:
            yield f"the {word} is {type(each).__name__}, and {kept['class']} in the checkpoint"


def _restore_optimizer(
    optimizer: torch.optim.Optimizer,
    saved: Mapping[str, Any],
    names: Mapping[int, str],
    tensors: Mapping[str, Any],
) -> None:
    """Give an optimizer its moments and options.

    Not by `load_state_dict`, which rounds moments to the dtype of the parameter.
    """
    optimizer.state.clear()
    for parameter in parameters_of(optimizer):
        state = saved["state"].get(names[id(parameter)])
        if state is not None:
            kept = from_json(state, tensors)
            optimizer.state[parameter] = {
                key: _moved(value, parameter, optimizer if key == "step" else None)
                for key, value in kept.items()
            }
    for group, kept in zip(optimizer.param_groups, saved["groups"], strict=True):
        group.update(from_json(kept["options"], tensors))


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


def _tensor(tensors: Mapping[str, Any], name: str) -> torch.Tensor:
    return as_tensor(np.asarray(tensors[name]))


def _short(name: str) -> str:
    return name.partition("/")[2]


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _listed(differences: list[str]) -> str:
    more = len(differences) - _LISTED
    return "; ".join(differences[:_LISTED]) + (f"; and {more} more" if more > 0 else "")
