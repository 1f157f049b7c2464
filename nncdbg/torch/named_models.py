"""Models and optimizers, and the names of their modules and tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch

from nncdbg.engine.errors import UsageError
from nncdbg.engine.ops.aten.internals import uncompiled, uncompiled_name, without_dispatch
from nncdbg.torch.sharded_tensors import inner_tensors, placement

Models: TypeAlias = "torch.nn.Module | Iterable[torch.nn.Module] | Mapping[str, torch.nn.Module]"
Optimizers: TypeAlias = "torch.optim.Optimizer | Iterable[torch.optim.Optimizer]"


class NamedTensor(NamedTuple):
    """A tensor of a model or an optimizer."""

    name: str
    tensor: torch.Tensor
    owner: str | None = None
    """For a moment, the name of its parameter."""
    persists: bool = True
    """Whether the next step uses it: False for a gradient."""
    placement: str = ""
    """How the `DTensor` is placed of which this is the shard on this rank."""


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


def takes_hooks(module: torch.nn.Module) -> bool:
    """Return whether a module takes hooks: one of TorchScript does not."""
    return not isinstance(module, torch.jit.ScriptModule)


def own_tensors(models: Mapping[str, torch.nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and buffers by name, but for those of lazy modules that have no size yet."""
    for prefix, model in models.items():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if not torch.nn.parameter.is_lazy(tensor):
                plain = uncompiled_name(name)
                yield (f"{prefix}.{plain}" if prefix else plain), tensor


def dense_parts(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors with memory of which one consists, by name.

    These are the tensor itself, the indices and values of a sparse one, the shard of a `DTensor` on this rank
    under the same name, or what another tensor of this kind is made of.
    """
    if tensor.layout is torch.sparse_coo:
        with without_dispatch():
            yield f"{name}.indices", tensor._indices()
            yield f"{name}.values", tensor._values()
        return
    for suffix, part in inner_tensors(tensor):
        yield f"{name}{suffix}", part


def named_tensors(
    own: Iterable[tuple[str, torch.Tensor]], optimizers: Iterable[torch.optim.Optimizer]
) -> list[NamedTensor]:
    """Return the tensors of `own_tensors` with their gradients (``w.grad``) and moments (``w.exp_avg``).

    A sparse gradient is ``w.grad.indices`` and ``w.grad.values``, and of a `DTensor` there is the shard on
    this rank.
    """
    found: list[NamedTensor] = []
    owners: dict[int, str] = {}

    def add(name: str, tensor: torch.Tensor, owner: str | None = None, *, persists: bool = True) -> None:
        placed = placement(tensor)
        parts = dense_parts(name, tensor)
        found.extend(NamedTensor(part, each, owner, persists, placed) for part, each in parts)

    for name, tensor in own:
        owners[id(tensor)] = name
        add(name, tensor)
        # torch warns when the gradient of any other tensor is read.
        if (tensor.is_leaf or tensor.retains_grad) and tensor.grad is not None:
            add(f"{name}.grad", tensor.grad, persists=False)
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            owner = owners.get(id(parameter), "parameter")
            for key, moment in state.items():
                if isinstance(moment, torch.Tensor):
                    add(f"{owner}.{key}", moment, owner)
    return found


def tensors_by_name(
    models: Mapping[str, torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer]
) -> dict[str, torch.Tensor]:
    """Return the tensors of `named_tensors` by name."""
    return {each.name: each.tensor for each in named_tensors(own_tensors(models), optimizers)}
