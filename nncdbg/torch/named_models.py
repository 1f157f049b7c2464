"""Models and optimizers, and the names of their modules and tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import torch

from nncdbg.engine.errors import UsageError
from nncdbg.engine.ops.aten.internals import uncompiled, uncompiled_name

Models: TypeAlias = "torch.nn.Module | Iterable[torch.nn.Module] | Mapping[str, torch.nn.Module]"
Optimizers: TypeAlias = "torch.optim.Optimizer | Iterable[torch.optim.Optimizer]"


def classes_of_modules(modules: Mapping[str, torch.nn.Module]) -> dict[str, str]:
    return {name: type(module).__name__ for name, module in submodules(modules) if name}


def named_models(model: Models | None) -> dict[str, torch.nn.Module]:
    """Return the models by name; a single one has no name.  Raises UsageError for anything else."""
    if model is None:
        return {}
    if isinstance(model, torch.nn.Module):
        return {"": model}
    found = dict(model) if isinstance(model, Mapping) else {}
    if not isinstance(model, Mapping):
        listed = list(model) if isinstance(model, Iterable) else [model]
        found = {f"model{index}" if len(listed) > 1 else "": each for index, each in enumerate(listed)}
    for each in found.values():
        if not isinstance(each, torch.nn.Module):
            raise UsageError(
                f"a model must be a torch.nn.Module, not {type(each).__name__}",
                hint="pass the model first, then the optimizer",
            )
    return found


def listed_optimizers(optimizer: Optimizers | None) -> list[torch.optim.Optimizer]:
    """Return the optimizers.  Raises UsageError for anything else."""
    if optimizer is None:
        return []
    listed = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    listed = [_innermost(each) for each in listed]
    for each in listed:
        if not isinstance(each, torch.optim.Optimizer):
            raise UsageError(
                f"an optimizer must be a torch.optim.Optimizer, not {type(each).__name__}",
                hint="pass the model first, then the optimizer",
            )
    return listed


def _innermost(optimizer: Any) -> Any:
    """Return the optimizer inside of a wrapper of Accelerate or Lightning, which has the hooks."""
    inside = getattr(optimizer, "optimizer", None)
    return _innermost(inside) if isinstance(inside, torch.optim.Optimizer) else optimizer


def submodules(models: Mapping[str, torch.nn.Module]) -> Iterator[tuple[str, torch.nn.Module]]:
    for prefix, model in models.items():
        for name, module in model.named_modules():
            if uncompiled(module) is module:
                yield ".".join(part for part in (prefix, uncompiled_name(name)) if part), module


def own_tensors(models: Mapping[str, torch.nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and buffers by name, but for those of lazy modules that have no size yet."""
    for prefix, model in models.items():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if not torch.nn.parameter.is_lazy(tensor):
                plain = uncompiled_name(name)
                yield (f"{prefix}.{plain}" if prefix else plain), tensor


def named_tensors(
    models: Mapping[str, torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters, buffers, gradients (``w.grad``) and moments (``w.exp_avg``) that exist, by name."""
    for name, tensor in own_tensors(models):
        yield name, tensor
        # torch warns when the gradient of any other tensor is read.
        if (tensor.is_leaf or tensor.retains_grad) and tensor.grad is not None:
            yield f"{name}.grad", tensor.grad
    for name, _, moment in _moments(models, optimizers):
        yield name, moment


def persistent_names(
    models: Mapping[str, torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer]
) -> dict[str, str | None]:
    """Return the names of parameters, buffers and moments that exist, a moment with its parameter's name."""
    found: dict[str, str | None] = {name: None for name, _ in own_tensors(models)}
    return found | {name: parameter for name, parameter, _ in _moments(models, optimizers)}


def _moments(
    models: Mapping[str, torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer]
) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yield name, name of the parameter, and tensor of the moments that exist."""
    owners = {id(tensor): name for name, tensor in own_tensors(models)}
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            owner = owners.get(id(parameter), "parameter")
            for key, moment in state.items():
                if isinstance(moment, torch.Tensor):
                    yield f"{owner}.{key}", owner, moment
