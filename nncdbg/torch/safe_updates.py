"""Which updates of torch's own optimizers can make no NaN and no Inf, so that their operators need no check.

Gradients, parameters and moments bound the numbers of such an update.  A float32 with a finite square is
below ``2**64``.  So Adam divides at most ``10 * 2**64 / 1e-4`` by at least ``1e-12``.  The quotient is below
``2**121``, and so finite; it is added to a parameter below ``2**71``.  In the updates of
`_updates_until_check`, squares of gradients add up to second moments of ``2**127`` at most.  The bounds of
float64 are wider.
"""

from __future__ import annotations

import inspect
import math
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW
from torch.optim import optimizer as torch_optimizers

from nncdbg.engine.ops.aten.internals import dispatch_modes
from nncdbg.torch.finiteness import suspicious
from nncdbg.torch.trained import parameters_of

_CLASSES = (torch.Tensor, torch.nn.Parameter)
_DTYPES = (torch.float32, torch.float64)
_NOT_NEGATIVE = ("step", "exp_avg_sq", "max_exp_avg_sq")
"""Entries of the state of an optimizer that must not be negative, for a square root or a power of them."""

_LONGEST = 1 << 20
"""The most updates until parameters and moments are read again: rounding adds less than 2**-22 in each."""

_PATIENCE = 100
"""The number of updates that are checked after parameters or moments were found to be too large."""


class SafeUpdates:
    """Finds updates that can make no NaN and no Inf.

    Parameters and moments are read before the first one.  Later, torch's counts of writes show whether
    anything but a safe update has changed them.  torch does not count writes of NumPy, or through
    `Tensor.data`.  A NaN that such a write makes is found in losses, gradients or parameters, without an
    operator.
    """

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Small] = weakref.WeakKeyDictionary()
        self._waiting: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        """How many updates are checked before parameters and moments are read again."""

    def is_safe(self, optimizer: torch.optim.Optimizer, gradients: Sequence[Any]) -> bool:
        """Return whether no operator of an update without closure can make a NaN or Inf.

        `gradients` are those of its parameters, whose squares must be finite.
        """
        rule = _RULES.get(type(optimizer))
        if (
            rule is None
            or not all(map(rule, optimizer.param_groups))
            or hasattr(optimizer, "grad_scale")
            or dispatch_modes()
            or not runs_only_torch(optimizer)
        ):
            return False
        kinds = {*map(_kind_of, gradients)}
        if len(kinds) != 1 or not kinds <= _KINDS:
            return False
        tensors = _tensors_of(optimizer)
        small = self._known.get(optimizer)
        if small is not None and small.left > 0 and small.is_unchanged(tensors):
            return True
        waiting = self._waiting.get(optimizer, 0)
        if waiting:
            self._waiting[optimizer] = waiting - 1
            return False
        if not _are_small(optimizer, tensors, gradients[0].dtype):
            self._waiting[optimizer] = _PATIENCE
            return False
        self._known[optimizer] = _Small(tensors, _updates_until_check(optimizer))
        return True

    def updated(self, optimizer: torch.optim.Optimizer, *, safely: bool) -> None:
        """Enter the end of an update: `safely` if it was safe, and the squares of parameters are finite."""
        small = self._known.pop(optimizer, None)
        if safely and small is not None:
            self._known[optimizer] = _Small(_tensors_of(optimizer), small.left - 1)


class _Small:
    """Parameters and moments whose squares were finite, for as many as `left` updates."""

    def __init__(self, tensors: Sequence[Any], left: int) -> None:
        self.left = left
        self._tensors = tensors
        self._writes = _writes_to(tensors)

    def is_unchanged(self, tensors: Sequence[Any]) -> bool:
        """Return whether these are the tensors, and torch has counted no write to them."""
        return (
            len(tensors) == len(self._tensors)
            and all(map(operator.is_, tensors, self._tensors))
            and _writes_to(tensors) == self._writes
        )


def _writes_to(tensors: Sequence[Any]) -> list[int]:
    """Return the address of each tensor, and how often it was written to."""
    return [*map(torch.Tensor.data_ptr, tensors), *map(_version_of, tensors)]


_version_of = operator.attrgetter("_version")
_kind_of = operator.attrgetter("__class__", "is_cpu", "layout", "dtype")
_KINDS = frozenset((each, True, torch.strided, dtype) for each in _CLASSES for dtype in _DTYPES)


def _tensors_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return parameters and all that an optimizer keeps for them, except None."""
    tensors = [*parameters_of(optimizer)]
    for state in optimizer.state.values():
        tensors += state.values()
    return tensors if None not in {*map(type, tensors)} else [each for each in tensors if each is not None]


def _are_small(optimizer: torch.optim.Optimizer, tensors: Sequence[Any], dtype: torch.dtype) -> bool:
    """Return whether parameters and moments of a dtype have finite squares; some must not be negative."""
    if not {*map(type, tensors)} <= {*_CLASSES}:
        return False
    steps = {id(state.get("step")) for state in optimizer.state.values()}
    if any(
        _kind_of(each) not in _KINDS or each.is_inference() or (each.dtype != dtype and id(each) not in steps)
        for each in tensors
    ):
        return False
    not_negative = (
        state[name] for state in optimizer.state.values() for name in _NOT_NEGATIVE if name in state
    )
    return not suspicious(tensors) and not any(bool((each < 0).any()) for each in not_negative)


def _updates_until_check(optimizer: torch.optim.Optimizer) -> int:
    """Return after how many updates second moments may be half of the largest number."""
    decays = [group["betas"][1] for group in optimizer.param_groups if "betas" in group]
    return min([_LONGEST, *(int(math.log(0.5) / math.log(decay)) for decay in decays)])


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


def _is_between(number: Any, least: float, most: float) -> bool:
    return type(number) in (int, float) and least <= number <= most


def _is_usual_adam(group: Mapping[str, Any]) -> bool:
    """Return whether the options of Adam keep the bounds, without a weight decay that changes gradients."""
    first, second = group["betas"]
    decay = group["weight_decay"]
    return (
        _is_between(first, 0, 0.9999)
        and _is_between(second, 0.5, 0.9999)
        and _is_between(group["lr"], 0, 10)
        and _is_between(group["eps"], 1e-12, 1)
        and _is_between(decay, 0, 10)
        and (not decay or bool(group.get("decoupled_weight_decay")))
        and not group["capturable"]
        and not group["differentiable"]
    )


def _is_usual_sgd(group: Mapping[str, Any]) -> bool:
    """Return whether the options of SGD keep the bounds."""
    return (
        _is_between(group["momentum"], 0, 0.9999)
        and _is_between(group["dampening"], 0, 1)
        and _is_between(group["lr"], 0, 1e4)
        and _is_between(group["weight_decay"], 0, 1e3)
        and not group["differentiable"]
    )


_RULES: Mapping[type, Callable[[Mapping[str, Any]], bool]] = {
    Adam: _is_usual_adam,
    AdamW: _is_usual_adam,
    SGD: _is_usual_sgd,
}
"""Classes of optimizers, and whether the options of a group keep the bounds."""
