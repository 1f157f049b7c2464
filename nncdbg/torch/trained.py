"""The parameters that a training changes, and their names."""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from nncdbg.engine.ops.aten.internals import uncompiled_name
from nncdbg.torch import guard_kernels
from nncdbg.torch.found_models import live_objects, models_of
from nncdbg.torch.named_models import Models, Optimizers, listed_optimizers, named_models


class Trained:
    """Models and optimizers: those that the user named, or else those that were called so far.

    `called` holds the outermost modules that were called so far.
    """

    def __init__(
        self,
        model: Models | None,
        optimizer: Optimizers | None,
        called: weakref.WeakSet[torch.nn.Module],
    ) -> None:
        self.models: Mapping[str, torch.nn.Module] = named_models(model)
        """The models that the user named, by name."""
        self._optimizers = listed_optimizers(optimizer)
        self._called = called
        self.leaves: Sequence[Any] = ()
        """The tensors that a training without modules and optimizers trains."""
        self._seen: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        """Optimizers that made an update."""
        self._owners: weakref.WeakKeyDictionary[torch.optim.Optimizer, weakref.WeakSet[torch.nn.Module]] = (
            weakref.WeakKeyDictionary()
        )
        self._found: list[Mapping[str, torch.nn.Module]] | None = None
        """In a block of `searched_once`: what a search has found, if there was one."""

    def clear(self) -> None:
        """Forget what the user named: the script may drop it now."""
        self.models, self._optimizers, self.leaves = {}, [], ()

    @contextmanager
    def searched_once(self) -> Iterator[None]:
        """Search the models once in the block: a search reads all objects of the process."""
        before = self._found
        self._found = [] if before is None else before
        try:
            yield
        finally:
            self._found = before

    @property
    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        return self._optimizers or [*self._seen]

    @property
    def modules(self) -> Sequence[torch.nn.Module]:
        """The models, or else the outermost modules."""
        return [*(self.models.values() or self._called)]

    def awaits_update(self) -> bool:
        """Return whether the script has an optimizer of these parameters that made no update so far."""
        trained = {id(each) for each in self.parameters()}
        return any(
            not trained.isdisjoint(map(id, parameters_of(each)))
            for each in live_objects(torch.optim.Optimizer)
        )

    def watches(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether an optimizer is one of these; all are if the user named none."""
        return not self._optimizers or optimizer in self._optimizers

    def add_updated(self, optimizer: torch.optim.Optimizer) -> None:
        """Enter an optimizer that makes an update."""
        if not self._optimizers:
            self._seen.add(optimizer)

    def parameters(self) -> list[Any]:
        """Return the parameters of the optimizers, or of the modules while no optimizer is known."""
        known = self.optimizers
        if len(known) == 1:
            return parameters_of(known[0])
        if known:
            return [each for optimizer in known for each in parameters_of(optimizer)]
        return [each for module in self.modules for each in module.parameters()] or [*self.leaves]

    def all_parameters(self) -> list[Any]:
        """Return all parameters to which a backward pass may have added a gradient."""
        found = {id(each): each for each in self.parameters()}
        for module in (*self.models.values(), *self._called):
            found |= {id(each): each for each in module.parameters()}
        return [*found.values()]

    def models_of(self, parameters: Sequence[Any]) -> Mapping[str, torch.nn.Module]:
        """Return the models by name; if the user named none, the outermost ones with these parameters."""
        if self.models:
            return self.models
        found = [] if self._found is None else self._found
        if not found:
            found.append(models_of(self.optimizers))
        wanted = {*map(id, parameters)}
        return {
            name: module
            for name, module in found[0].items()
            if any(id(each) in wanted for each in module.parameters())
        }

    def modules_of(self, optimizer: torch.optim.Optimizer) -> Sequence[torch.nn.Module]:
        """Return the models; if the user named none, those with parameters of an optimizer."""
        if self.models:
            return self.modules
        if optimizer not in self._owners:
            owners = self.models_of(parameters_of(optimizer))
            self._owners[optimizer] = weakref.WeakSet(owners.values())
        return [*self._owners[optimizer]]

    def module_paths(self, parameters: Sequence[Any]) -> dict[int, str]:
        """Return the identity and the path of each module of the models of `models_of`."""
        return {
            id(module): ".".join(filter(None, (prefix, uncompiled_name(name))))
            for prefix, model in self.models_of(parameters).items()
            for name, module in model.named_modules()
        }

    def named(self, parameters: Sequence[Any]) -> list[tuple[str, Any]]:
        """Return parameters with their names."""
        names = {
            id(parameter): ".".join(filter(None, (prefix, uncompiled_name(name))))
            for prefix, model in self.models_of(parameters).items()
            for name, parameter in model.named_parameters()
        }
        if self.leaves:
            names |= {id(value): name for name, value in vars(sys.modules["__main__"]).items()}
        return [(names.get(id(each), f"parameter{n}"), each) for n, each in enumerate(parameters)]


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return the parameters of an optimizer."""
    found: list[Any] = []
    for group in optimizer.param_groups:
        found += group["params"]
    return found


def gradients_of(parameters: Sequence[Any]) -> list[Any]:
    """Return the gradient of each parameter, or None."""
    library = guard_kernels.used
    found: list[Any] | None = None if library is None else library.gradients(parameters)
    return [*map(_gradient_of, parameters)] if found is None else found


_gradient_of = operator.attrgetter("grad")


def closure_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the closure of a call of `Optimizer.step`, whose arguments begin with the optimizer, or None."""
    return kwargs.get("closure", args[1] if len(args) > 1 else None)


def drop_gradients(parameters: Sequence[Any]) -> None:
    """Make the update change nothing: optimizers leave out parameters without a gradient."""
    for parameter in parameters:
        parameter.grad = None
