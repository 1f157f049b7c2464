"""The models and optimizers that a script has, found without its help, and the names of the models."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def models_of(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, torch.nn.Module]:
    """Return the outermost modules with parameters by name.

    The only one with parameters of the optimizers has no name; others have that of their variable in the
    script, or of their class.
    """
    # A module whose `__init__` has failed has no attributes of one; a kept traceback holds it.
    built = [each for each in live_objects(torch.nn.Module) if hasattr(each, "training")]
    modules = _without_traced(built)
    inside = {id(child) for module in modules for child in module.children()}
    outermost = [
        each for each in modules if id(each) not in inside and next(each.parameters(), None) is not None
    ]
    trained = {id(each) for opt in optimizers for group in opt.param_groups for each in group["params"]}
    holders = [each for each in outermost if not trained.isdisjoint(map(id, each.parameters()))]
    main = holders if optimizers else outermost
    variables = {id(value): name for name, value in vars(sys.modules["__main__"]).items()}
    named: dict[str, torch.nn.Module] = {}
    for module in outermost:
        wanted = variables.get(id(module), type(module).__name__.lower())
        name = "" if main == [module] else wanted
        number = 1
        while name in named:
            number += 1
            name = f"{wanted}.{number}"
        named[name] = module
    return named


def _without_traced(modules: Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
    """Leave out the graphs that the compiler has of functions with the parameters of other modules."""
    written = [each for each in modules if not isinstance(each, torch.fx.GraphModule)]
    known = {id(parameter) for each in written for parameter in each.parameters(recurse=False)}
    return written + [
        each
        for each in modules
        if isinstance(each, torch.fx.GraphModule) and known.isdisjoint(map(id, each.parameters()))
    ]


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
