"""The tensors of modules that live over steps, other than trained parameters.

These are buffers, frozen parameters, and tensors in attributes, such as a queue, a cache or a moving average.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from nncdbg.torch.finiteness import is_finite, suspicious
from nncdbg.torch.named_models import submodules, takes_hooks
from nncdbg.torch.tensor_copies import TensorCopies

_FEW_BYTES = 1 << 18
"""So many bytes are read in each step.  Of more, those that torch counts a write to: not one by `.data`."""

_PERIOD = 32
"""The number of checks until all states are read, and new ones are searched."""

_LONGEST = 1000
"""The most elements of a dictionary or list that a second run restores."""

_MOST_FOUND = 2
"""How often a state is found: one that is -inf in each other step, as a mask, costs no more second runs."""

_PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Classes of tensors that have memory of their own."""

_OF_TORCH = frozenset(vars(torch.nn.Module()))
"""The attributes of each module, which have no states besides buffers and parameters."""


class State:
    """One tensor that a module keeps in a dictionary or list, as it was when it was last checked."""

    __slots__ = ("owner", "key", "bad", "changes", "found", "_tensor", "_version")

    def __init__(self, owner: Any, key: Any) -> None:
        self.owner = owner
        self.key = key
        self.bad = False
        """Whether it had NaN or Inf."""
        self.changes = False
        """Whether a write to it was seen."""
        self.found = 0
        """How often it was found to be NaN or Inf."""
        self._tensor: Any = _nothing
        self._version = 0

    def tensor(self) -> Any:
        """Return the tensor; None if there is none that can be NaN."""
        try:
            found = self.owner[self.key]
        except LookupError:
            return None
        return found if found is self._tensor() or _is_state(found) else None

    def is_bad(self) -> bool:
        """Return whether it has NaN or Inf now."""
        tensor = self.tensor()
        return tensor is not None and not is_finite(tensor)

    def has_changed(self, tensor: Any) -> bool:
        """Return whether it is another tensor than before, or one that was written to."""
        version = version_of(tensor)
        if self._tensor() is tensor and self._version == version:
            return False
        self._tensor, self._version = weakref.ref(tensor), version
        return True


class ModuleStates:
    """The states of the modules of a training."""

    def __init__(self, models: Iterable[torch.nn.Module], called: weakref.WeakSet[torch.nn.Module]) -> None:
        self._models = [*models]
        """The models that the user named."""
        self._called = called
        self._states: list[State] = []
        self.others: list[State] = []
        """Those of them that are no buffers, which the recorder does not know."""
        self._count = -1
        """The number of called modules when states were searched."""
        self._owners: list[Any] = []
        """The dictionaries and lists of modules that a forward pass may change."""
        self._few = True
        """Whether all states are read in each step."""
        self._left = _PERIOD
        self._kept = KeptStates()

    def follow(self) -> None:
        """Search the states of modules that were not seen before.  A NaN that they have now is no finding."""
        if self._left and len(self._called) == self._count:
            return
        self._left, self._count = _PERIOD, len(self._called)
        modules = [*dict.fromkeys([*self._models, *self._called])]
        before = {(id(each.owner), each.key): each for each in self._states}
        owners = [owner for module in modules for owner in _owners(module)]
        found = {(id(owner), key): (owner, key) for owner in owners for key in _keys(owner)}
        new = [State(*entry) for place, entry in found.items() if place not in before]
        self._states = [*(each for place, each in before.items() if place in found), *new]
        buffers = {id(each._buffers) for module in modules for each in module.modules()}
        self.others = [each for each in self._states if id(each.owner) not in buffers]
        self._owners = [each for each in owners if id(each) not in buffers]
        self._few = sum(tensor.nbytes for _, tensor in _with_tensors(self._states)) <= _FEW_BYTES
        for state, tensor in _with_tensors(new):
            state.has_changed(tensor)
            state.bad = not is_finite(tensor)

    def keep(self) -> KeptStates | None:
        """Return the states other than buffers, as they are before a step; None without any."""
        if not self._owners:
            return None
        self._kept.update(self._owners, [each for each in self.others if self._few or each.changes])
        return self._kept

    def newly_bad(self) -> list[State]:
        """Return the states with NaN or Inf that were finite when they were last checked."""
        self._left = max(self._left - 1, 0)
        checked = []
        for state, tensor in _with_tensors(self._states):
            if state.has_changed(tensor):
                state.changes = True
                checked.append((state, tensor))
            elif (self._few or not self._left) and not state.bad:
                checked.append((state, tensor))
        if not checked or not suspicious([tensor for _, tensor in checked]):
            for state, _ in checked:
                state.bad = False
            return []
        found = []
        for state, tensor in checked:
            before, state.bad = state.bad, not is_finite(tensor)
            if state.bad and not before and state.found < _MOST_FOUND:
                state.found += 1
                found.append(state)
        return found


class KeptStates:
    """Copies of what modules have besides buffers: attributes, lists and dictionaries, and their tensors."""

    def __init__(self) -> None:
        self._contents: list[tuple[Any, Any]] = []
        """Dictionaries and lists, each with a copy."""
        self._states: Sequence[State] = ()
        self._copies = TensorCopies(())

    def update(self, owners: Iterable[Any], states: Sequence[State]) -> None:
        """Copy dictionaries and lists, and the tensors of states, as they are now."""
        self._contents = [(each, each.copy()) for each in owners if len(each) <= _LONGEST]
        self._states = states
        self._copies.update([tensor for _, tensor in _with_tensors(states)])

    def restore(self) -> None:
        """Make everything as it was."""
        for owner, content in self._contents:
            if type(owner) is list:
                owner[:] = content
            else:
                for name in owner.keys() - content.keys():
                    del owner[name]
                owner.update(content)
        self._copies.restore()

    def now(self) -> KeptStates:
        """Return copies of the same as it is now."""
        kept = KeptStates()
        kept.update([owner for owner, _ in self._contents], self._states)
        return kept


def named_states(states: Iterable[State], models: Mapping[str, torch.nn.Module]) -> dict[str, Any]:
    """Return the tensors of states by name: the path of the module, and the name in it."""
    paths: dict[int, str] = {}
    for path, module in submodules(models):
        own = vars(module)
        paths |= {id(own): path, id(module._buffers): path, id(module._parameters): path}
        for name, value in own.items():
            if name not in _OF_TORCH:
                paths[id(value)] = f"{path}.{name}" if path else name
    return {
        ".".join(filter(None, (paths.get(id(state.owner), ""), str(state.key)))): tensor
        for state, tensor in _with_tensors(states)
    }


def _owners(module: torch.nn.Module) -> Iterator[Any]:
    """Yield the dictionaries and lists in a module that may hold states."""
    for each in filter(takes_hooks, module.modules()):
        yield each._buffers
        if any(
            not parameter.requires_grad for parameter in each._parameters.values() if parameter is not None
        ):
            yield each._parameters
        own = vars(each)
        names = own.keys() - _OF_TORCH
        if names and not type(each).__module__.startswith("torch."):
            yield own
            yield from (own[name] for name in own if name in names and type(own[name]) in (dict, list))


def _keys(owner: Any) -> Iterator[Any]:
    """Yield the keys of the states in a dictionary or list."""
    entries = owner.items() if isinstance(owner, Mapping) else enumerate(owner)
    return (key for key, value in entries if _is_state(value))


def _is_state(value: Any) -> bool:
    """Return whether a value is a tensor of numbers without a gradient."""
    return bool(
        value.__class__ in _PLAIN
        and not value.requires_grad
        and (value.is_floating_point() or value.is_complex())
        and value.layout is torch.strided
        and not value.is_meta
    )


def _with_tensors(states: Iterable[State]) -> Iterator[tuple[State, Any]]:
    return ((state, tensor) for state in states if (tensor := state.tensor()) is not None)


def version_of(tensor: Any) -> int:
    """Return how often a tensor was written to, as far as torch counts."""
    return 0 if tensor.is_inference() else int(tensor._version)


def _nothing() -> None:
    """Return None, as a reference to a tensor that no longer exists does."""
