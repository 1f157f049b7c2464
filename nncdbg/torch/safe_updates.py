"""Which updates of torch's own optimizers can make no NaN and no Inf, so that nothing of them needs a check.

Gradients, parameters and moments bound the numbers of such updates.  Let all of them be below ``2**20``, and
then only gradients be read, in `_LONGEST` updates.  The moments of Adam are weighted means, so they stay
below ``2**20`` and ``2**40``.  An update divides at most ``10 * 2**20 / 1e-4`` by at least ``1e-12``, so it
changes a parameter by less than ``2**77``; a decoupled weight decay makes no parameter larger.  In SGD, let
``x`` bound parameters and momentum, and be ``2**20`` or more.  The gradient with its weight decay is below
``2 * x``, the next momentum below ``3 * x``, and so the next parameter below ``6 * x``, with Nesterov's
momentum too.  `_LONGEST` such updates lead from ``2**20`` to less than ``2**103``.  float32 goes up to
``2**128``, and float64 further.
"""

from __future__ import annotations

import inspect
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import torch
from torch.optim import SGD, Adam, AdamW
from torch.optim import optimizer as torch_optimizers

from nncdbg.engine.ops.aten.internals import dispatch_modes
from nncdbg.torch import guard_kernels
from nncdbg.torch.finiteness import are_moderate, suspicious
from nncdbg.torch.trained import parameters_of

_CLASSES = (torch.Tensor, torch.nn.Parameter)
_DTYPES = (torch.float32, torch.float64)
_NOT_NEGATIVE = ("step", "exp_avg_sq", "max_exp_avg_sq")
"""Entries of the state of an optimizer that must not be negative, for a square root or a power of them."""

_LONGEST = 32
"""The most updates until parameters and moments are read again."""

_FEW = 4
"""So few updates between two readings take longer than checks of the parameters after each update."""

_PATIENCE = 100
"""The number of updates that are checked after large numbers, or after few updates between two readings."""

_FASTER_READ = 1 << 15
"""The bytes of parameters, for each parameter or moment, that are read in less time than `is_safe` takes."""


class SafeUpdates:
    """Finds updates that can make no NaN and no Inf.

    Parameters and moments are read before the first one, and again after `_LONGEST` updates.  In between,
    torch's counts of writes show whether anything but a safe update has changed them.  torch does not count
    writes of NumPy, or through `Tensor.data`.  A NaN that such a write makes is found later, in a loss or in
    gradients.  With `only_large`, no update of few bytes is safe: reading its parameters takes less time.
    """

    def __init__(self, *, only_large: bool = False) -> None:
        self._only_large = only_large
        self._known: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Moderate] = weakref.WeakKeyDictionary()
        self._waiting: dict[int, int] = {}
        """By identity of the optimizer: how many updates are checked before another may be safe."""

    def have_moderate(self, optimizer: torch.optim.Optimizer, gradients: Sequence[Any]) -> bool:
        """Return whether all gradients of an update are moderate, so that it may be safe.

        Returns False without reading them for some updates after one that was not.
        """
        waiting = self._waiting.get(id(optimizer), 0)
        if waiting:
            self._waiting[id(optimizer)] = waiting - 1
            return False
        return are_moderate(gradients) or self._wait(optimizer)

    def is_safe(self, optimizer: torch.optim.Optimizer, gradients: Sequence[Any]) -> bool:
        """Return whether no operator of an update without closure can make a NaN or Inf.

        `gradients` are those of its parameters, which must be moderate.
        """
        moderate = self._known.pop(optimizer, None)
        if dispatch_modes() or not is_usual(optimizer):
            return False
        kinds = {*map(_kind_of, gradients)}
        if len(kinds) != 1 or not kinds <= _KINDS:
            return False
        writes = _writes_of(optimizer)
        if moderate is None or not moderate.left or writes != moderate.writes:
            tensors = _tensors_of(optimizer)
            if moderate is not None and moderate.left > _LONGEST - _FEW:
                return self._wait(optimizer)
            if self._only_large and _bytes_of(optimizer) < _FASTER_READ * len(tensors):
                return self._wait(optimizer)
            if not _are_moderate(optimizer, tensors, gradients[0].dtype):
                return self._wait(optimizer)
            moderate = _Moderate(tensors, writes, _LONGEST)
        self._known[optimizer] = moderate
        return True

    def updated(self, optimizer: torch.optim.Optimizer) -> None:
        """Enter the end of a safe update."""
        moderate = self._known.pop(optimizer, None)
        if moderate is not None:
            moderate.update_ended(optimizer)
            self._known[optimizer] = moderate

    def _wait(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return False for some updates."""
        self._waiting[id(optimizer)] = _PATIENCE
        return False


class _Moderate:
    """Parameters and moments that were moderate, for as many as `left` updates."""

    def __init__(self, tensors: Sequence[Any], writes: _Writes, left: int) -> None:
        self.left = left
        self.writes = writes
        """What `_writes_of` returned."""
        self._tensors = tensors
        """Kept, as no other tensor has their identities then."""

    def update_ended(self, optimizer: torch.optim.Optimizer) -> None:
        """Enter a safe update of these tensors."""
        writes, count = _writes_of(optimizer), len(self.writes) // 3
        if len(writes) != len(self.writes) or writes[:count] != self.writes[:count]:
            self._tensors = _tensors_of(optimizer)
        self.left, self.writes = self.left - 1, writes


_Writes: TypeAlias = "bytes | list[int]"


def _writes_of(optimizer: torch.optim.Optimizer) -> _Writes:
    """Return the identities of parameters and moments, their addresses, and how often each was written to.

    Empty if torch does not count the writes to one.
    """
    library = guard_kernels.used
    found: bytes | None = None if library is None else library.writes(optimizer.param_groups, optimizer.state)
    if found is not None:
        return found
    tensors = _tensors_of(optimizer)
    if not {*map(type, tensors)} <= {*_CLASSES} or any(map(torch.Tensor.is_inference, tensors)):
        return []
    return [*map(id, tensors), *map(torch.Tensor.data_ptr, tensors), *map(_version_of, tensors)]


_version_of = operator.attrgetter("_version")
_kind_of = operator.attrgetter("__class__", "is_cpu", "layout", "dtype")
_KINDS = frozenset((each, True, torch.strided, dtype) for each in _CLASSES for dtype in _DTYPES)


def _tensors_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return parameters and all that an optimizer keeps for them, except None."""
    tensors = parameters_of(optimizer)
    for state in optimizer.state.values():
        tensors += state.values()
    return tensors if None not in {*map(type, tensors)} else [each for each in tensors if each is not None]


def _bytes_of(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of the parameters of an optimizer."""
    return sum(int(each.nbytes) for each in parameters_of(optimizer))


def _are_moderate(optimizer: torch.optim.Optimizer, tensors: Sequence[Any], dtype: torch.dtype) -> bool:
    """Return whether parameters and moments of a dtype are moderate; some must not be negative."""
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
    return (
        are_moderate([each for each in tensors if id(each) not in steps])
        and not suspicious([each for each in tensors if id(each) in steps])
        and not any(bool((each < 0).any()) for each in not_negative)
    )


def is_usual(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an update is one of torch alone, with options that make no large number of others."""
    rule = _RULES.get(type(optimizer))
    return (
        rule is not None
        and all(map(rule, optimizer.param_groups))
        and not hasattr(optimizer, "grad_scale")
        and runs_only_torch(optimizer)
    )


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
    rate, decay = group["lr"], group["weight_decay"]
    return (
        _is_between(first, 0, 0.9999)
        and _is_between(second, 0.5, 0.9999)
        and _is_between(rate, 0, 10)
        and _is_between(group["eps"], 1e-12, 1)
        and _is_between(decay, 0, 10)
        and (not decay or (bool(group.get("decoupled_weight_decay")) and rate * decay <= 1))
        and not group["capturable"]
        and not group["differentiable"]
    )


def _is_usual_sgd(group: Mapping[str, Any]) -> bool:
    """Return whether the options of SGD keep the bounds."""
    return (
        _is_between(group["momentum"], 0, 0.9999)
        and _is_between(group["dampening"], 0, 1)
        and _is_between(group["lr"], 0, 1)
        and _is_between(group["weight_decay"], 0, 1)
        and not group["differentiable"]
    )


_RULES: Mapping[type, Callable[[Mapping[str, Any]], bool]] = {
    Adam: _is_usual_adam,
    AdamW: _is_usual_adam,
    SGD: _is_usual_sgd,
}
"""Classes of optimizers, and whether the options of a group keep the bounds."""
