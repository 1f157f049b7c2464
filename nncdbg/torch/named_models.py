"""Models and optimizers of a training: how they are found, their names, and what they train."""

from __future__ import annotations

import gc
import inspect
import operator
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch.optim import optimizer as torch_optimizers

from nncdbg.engine.ops.aten.internals import uncompiled, uncompiled_name, without_dispatch
from nncdbg.errors import UsageError
from nncdbg.ir.names import fresh_name
from nncdbg.torch import guard_kernels
from nncdbg.torch.sharded_tensors import inner_tensors, placement

# -- names of modules and tensors ----------------------------------------------------------

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
                yield _path(prefix, name), module


def _path(prefix: str, name: str) -> str:
    return ".".join(filter(None, (prefix, uncompiled_name(name))))


def inside_of_parallel(module: Any) -> Any:
    """Return the module inside of DistributedDataParallel, which communicates and has other names."""
    return inside_of_parallel(module.module) if _is_parallel(module.__class__) else module


@cache
def _is_parallel(kind: Any) -> bool:
    # `isinstance` with an abstract class takes 9 us inside of a step.
    return issubclass(kind, torch.nn.parallel.DistributedDataParallel)


def takes_hooks(module: torch.nn.Module) -> bool:
    """Return whether a module takes hooks: one of TorchScript does not."""
    return not isinstance(module, torch.jit.ScriptModule)


def own_tensors(models: Mapping[str, torch.nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and buffers by name, but for those of lazy modules that have no size yet."""
    for prefix, model in models.items():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if not torch.nn.parameter.is_lazy(tensor):
                yield _path(prefix, name), tensor


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


# -- models and optimizers of a script -----------------------------------------------------

T = TypeVar("T")


def models_of(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, torch.nn.Module]:
    """Return the outermost modules with parameters by name.

    The only one with parameters of the optimizers has no name; others have that of their variable in the
    script, or of their class.
    """
    # A module whose `__init__` has failed has no attributes of one; a kept traceback holds it.
    built = [each for each in live_objects(torch.nn.Module) if hasattr(each, "training")]
    written = [module for module in built if not isinstance(module, torch.fx.GraphModule)]
    own = {id(parameter) for module in written for parameter in module.parameters(recurse=False)}
    # The compiler has graphs of functions with the parameters of other modules.
    graphs = [module for module in built if isinstance(module, torch.fx.GraphModule)]
    modules = written + [module for module in graphs if own.isdisjoint(map(id, module.parameters()))]
    inside = {id(child) for module in modules for child in module.children()}
    outermost = [
        each for each in modules if id(each) not in inside and next(each.parameters(), None) is not None
    ]
    trained = {id(each) for optimizer in optimizers for each in parameters_of(optimizer)}
    holders = [each for each in outermost if not trained.isdisjoint(map(id, each.parameters()))]
    main = holders if optimizers else outermost
    variables = {id(value): name for name, value in vars(sys.modules["__main__"]).items()}
    named: dict[str, torch.nn.Module] = {}
    for module in outermost:
        wanted = variables.get(id(module), type(module).__name__.lower())
        named["" if main == [module] else fresh_name(wanted, named, first=2)] = module
    return named


_earlier: dict[int, weakref.ref[Any]] = {}
"""The models and optimizers of the process before its present script began."""


@contextmanager
def objects_of_script() -> Iterator[None]:
    """Let `live_objects` leave out the models and optimizers that exist before the body."""
    global _earlier
    before = _earlier
    _earlier = {
        id(each): weakref.ref(each)
        for each in gc.get_objects()
        if issubclass(type(each), torch.nn.Module | torch.optim.Optimizer)
    }
    try:
        yield
    finally:
        _earlier = before


def live_objects(kind: type[T]) -> list[T]:
    """Return the objects of a class that the script has."""
    gc.collect()
    # Not `isinstance`: a proxy's `__class__` may run code.
    found = [each for each in gc.get_objects() if issubclass(type(each), kind)]
    return [each for each in found if id(each) not in _earlier or _earlier[id(each)]() is not each]


# -- trained parameters --------------------------------------------------------------------


class Trained:
    """Models and optimizers: those that the user named, or else those that were called so far.

    `called` holds the outermost modules that were called so far.
    """

    def __init__(
        self, model: Models | None, optimizer: Optimizers | None, called: weakref.WeakSet[torch.nn.Module]
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
            id(module): _path(prefix, name)
            for prefix, model in self.models_of(parameters).items()
            for name, module in model.named_modules()
        }

    def named(self, parameters: Sequence[Any]) -> list[tuple[str, Any]]:
        """Return parameters with their names."""
        names = {
            id(parameter): _path(prefix, name)
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


def runs_only_torch(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an update runs no code of the user, such as a hook or another method `step`."""
    hooks = (
        *optimizer._optimizer_step_pre_hooks.values(),
        *optimizer._optimizer_step_post_hooks.values(),
        *torch_optimizers._global_optimizer_pre_hooks.values(),
        *torch_optimizers._global_optimizer_post_hooks.values(),
    )
    own = all(str(getattr(each, "__module__", "")).startswith("nncdbg.") for each in hooks)
    return own and _is_of_torch(type(optimizer).step)


@cache
def _is_of_torch(step: Callable[..., Any]) -> bool:
    return str(inspect.unwrap(step).__module__).startswith("torch.optim.")
