"""Tensors that live over steps, other than trained parameters: of modules, and of the script."""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from nncdbg.engine.ops.aten.internals import is_wrapped, storage_address, unseen, without_dispatch
from nncdbg.ir.names import fresh_name
from nncdbg.torch.finiteness import is_finite, suspicious
from nncdbg.torch.named_models import dense_parts, own_tensors, submodules, takes_hooks
from nncdbg.torch.sharded_tensors import PLAIN
from nncdbg.torch.step_call import no_tensor, version_of
from nncdbg.torch.step_state import TensorCopies

if TYPE_CHECKING:
    from nncdbg.torch.step_call import StepCall


# -- tensors of modules --------------------------------------------------------------------

# These are buffers, frozen parameters, and tensors in attributes, such as a queue, a cache or a moving
# average.


_FEW_BYTES = 1 << 18
"""So many bytes are read in each step.  Of more, those that torch counts a write to: not one by `.data`."""

_PERIOD = 32
"""The number of checks until all states are read, and new ones are searched."""

_LONGEST = 1000
"""The most elements of a dictionary or list that a second run restores."""

MOST_FOUND = 2
"""How often a state is found: one that is -inf in each other step, as a mask, costs no more second runs."""

_OF_TORCH = frozenset(vars(torch.nn.Module()))
"""The attributes of each module, which have no states besides buffers and parameters."""


@dataclass(eq=False, slots=True)
class StateHolder:
    """A dictionary of a module, or a list or dictionary in one of its attributes, which has states."""

    own: dict[str, Any]
    attribute: str = ""

    def owner(self) -> Any:
        """Return the dictionary or list."""
        return self.own.get(self.attribute, ()) if self.attribute else self.own


@dataclass(eq=False, slots=True)
class ModuleState:
    """One tensor of a module, as it was when it was last checked."""

    place: StateHolder
    key: Any
    bad: bool = False
    """Whether it had NaN or Inf."""
    changes: bool = False
    """Whether a write to it was seen."""
    found: int = 0
    """How often it was found to be NaN or Inf."""
    _tensor: Any = no_tensor
    _version: int = 0

    def tensor(self) -> Any:
        """Return the tensor; None if there is none that can be NaN."""
        try:
            found = self.place.owner()[self.key]
        except (LookupError, TypeError):
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
    """The states of the modules of a training; with `trained`, all of their parameters too."""

    def __init__(
        self,
        models: Iterable[torch.nn.Module],
        called: weakref.WeakSet[torch.nn.Module],
        *,
        trained: bool = False,
    ) -> None:
        self._trained = trained
        self._models = [*models]
        """The models that the user named."""
        self._called = called
        self._states: list[ModuleState] = []
        self.others: list[ModuleState] = []
        """Those of them that are no buffers, which the recorder does not know."""
        self._count = -1
        """The number of called modules when states were searched."""
        self._places: list[StateHolder] = []
        """The dictionaries and lists of modules that a forward pass may change."""
        self._few = True
        """Whether all states are read in each step."""
        self._finite: tuple[list[tuple[dict[str, Any], Any]], list[Any]] = [], []
        """Of states of modules themselves that were finite: the dictionaries with keys, and the tensors."""
        self._others_checked: list[ModuleState] = []
        """The states that are not among these."""
        self._left = _PERIOD
        self._kept = KeptStates()
        self._tables: dict[weakref.ref[torch.nn.Module], set[int]] = {}
        """The identities of the dictionaries in each module."""

    def clear(self) -> None:
        """Forget all modules, and what they have."""
        self._models, self._tables = [], {}
        self._forget_but(())

    @property
    def followed(self) -> bool:
        """Whether `follow` has nothing to do now."""
        return bool(self._left) and len(self._called) == self._count

    def follow(self) -> None:
        """Search the states of modules that were not seen before.  A NaN that they have now is no finding."""
        self._left, self._count = _PERIOD, len(self._called)
        modules = [*dict.fromkeys([*self._models, *self._called])]
        before = {_identity(each.place, each.key): each for each in self._states}
        of_modules = [(each, [*_places(each, trained=self._trained)]) for each in modules]
        places = [place for _, found in of_modules for place in found]
        self._tables = {
            weakref.ref(module, self._forget): {id(place.own) for place in found}
            for module, found in of_modules
        }
        found = {_identity(place, key): (place, key) for place in places for key in self._keys(place)}
        new = [ModuleState(*each) for identity, each in found.items() if identity not in before]
        self._states = [*(each for identity, each in before.items() if identity in found), *new]
        buffers = {id(each._buffers) for module in modules for each in module.modules()}
        self.others = [each for each in self._states if id(each.place.own) not in buffers]
        self._places = [each for each in places if id(each.own) not in buffers]
        self._few = sum(tensor.nbytes for _, tensor in _with_tensors(self._states)) <= _FEW_BYTES
        for state, tensor in _with_tensors(new):
            state.has_changed(tensor)
            state.bad = not is_finite(tensor)
        self._sort()

    def _sort(self) -> None:
        """Separate the states that are checked together, in one pass, from the others."""
        together = [
            (state, tensor)
            for state, tensor in _with_tensors(self._states)
            if self._few and not state.bad and not state.place.attribute
        ]
        self._finite = (
            [(state.place.own, state.key) for state, _ in together],
            [tensor for _, tensor in together],
        )
        found = {id(state) for state, _ in together}
        self._others_checked = [each for each in self._states if id(each) not in found]

    @unseen
    def _forget(self, module: weakref.ref[torch.nn.Module]) -> None:
        """Forget what a module had that no longer exists: its dictionaries hold its tensors."""
        self._tables.pop(module, None)
        self._forget_but(set().union(*self._tables.values()))

    def _forget_but(self, tables: Container[int]) -> None:
        """Forget the states in other dictionaries than these."""
        self._states, self.others = (
            [each for each in states if id(each.place.own) in tables]
            for states in (self._states, self.others)
        )
        self._places = [each for each in self._places if id(each.own) in tables]
        self._sort()
        self._kept = KeptStates()

    @property
    def has_others(self) -> bool:
        """Whether there are places for states other than buffers."""
        return bool(self._places)

    def keep(self) -> KeptStates:
        """Return the states other than buffers, as they are before a step."""
        self._kept.update(
            [each.owner() for each in self._places],
            [each for each in self.others if self._few or each.changes],
        )
        return self._kept

    def _keys(self, place: StateHolder) -> Iterator[Any]:
        owner = place.owner()
        for key, value in owner.items() if isinstance(owner, Mapping) else enumerate(owner):
            if _is_state(value) and (self._trained or not value.requires_grad):
                yield key

    def newly_bad(self) -> list[ModuleState]:
        """Return the states with NaN or Inf that were finite when they were last checked."""
        self._left = max(self._left - 1, 0)
        places, together = self._finite
        # The same tensors as before, and finite.
        same = all(map(operator.is_, [own.get(key) for own, key in places], together))
        finite = same and not (together and suspicious(together))
        if finite and not self._others_checked:
            return []
        found = self._checked(self._others_checked if finite else self._states)
        if found or not finite:
            self._sort()
        return found

    def _checked(self, states: Iterable[ModuleState]) -> list[ModuleState]:
        checked = []
        for state, tensor in _with_tensors(states):
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
            if state.bad and not before and state.found < MOST_FOUND:
                state.found += 1
                found.append(state)
        return found


class KeptStates:
    """Copies of what modules have besides buffers: attributes, lists and dictionaries, and their tensors."""

    def __init__(self) -> None:
        self._contents: list[tuple[Any, Any]] = []
        """Dictionaries and lists, each with a copy."""
        self._states: Sequence[ModuleState] = ()
        self._copies = TensorCopies(())

    def update(self, owners: Iterable[Any], states: Sequence[ModuleState]) -> None:
        """Copy dictionaries and lists, and the tensors of states, as they are now."""
        self._contents = [
            (each, each.copy()) for each in owners if type(each) in (dict, list) and len(each) <= _LONGEST
        ]
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


def named_states(states: Iterable[ModuleState], models: Mapping[str, torch.nn.Module]) -> dict[str, Any]:
    """Return the tensors of states by name: the path of the module, and the name in it."""
    paths: dict[int, str] = {}
    for path, module in submodules(models):
        paths |= dict.fromkeys(map(id, (vars(module), module._buffers, module._parameters)), path)
    return {
        ".".join(
            filter(None, (paths.get(id(state.place.own)), state.place.attribute, str(state.key)))
        ): tensor
        for state, tensor in _with_tensors(states)
    }


def _places(module: torch.nn.Module, *, trained: bool) -> Iterator[StateHolder]:
    """Yield the dictionaries and lists in a module that may hold states."""
    for each in filter(takes_hooks, module.modules()):
        if each._buffers:
            yield StateHolder(each._buffers)
        if any(trained or not one.requires_grad for one in each._parameters.values() if one is not None):
            yield StateHolder(each._parameters)
        own = vars(each)
        names = [name for name in own if name not in _OF_TORCH]
        if names and not type(each).__module__.startswith("torch."):
            yield StateHolder(own)
            yield from (StateHolder(own, name) for name in names if type(own[name]) in (dict, list))


def _identity(place: StateHolder, key: Any) -> tuple[int, str, Any]:
    return id(place.own), place.attribute, key


def _is_state(value: Any) -> bool:
    """Return whether a value is a parameter, or a tensor of numbers without a gradient."""
    return bool(
        value.__class__ in PLAIN
        and (value.__class__ is torch.nn.Parameter or not value.requires_grad)
        and (value.is_floating_point() or value.is_complex())
        and value.layout is torch.strided
        and not value.is_meta
        and not is_wrapped(value)
    )


def _with_tensors(states: Iterable[ModuleState]) -> Iterator[tuple[ModuleState, Any]]:
    return ((state, tensor) for state in states if (tensor := state.tensor()) is not None)


# -- memory that the script writes to ------------------------------------------------------

# It is a moving average of parameters, a clipped or normalized weight, or the weights of an update by hand.


_MOST_BYTES = 1 << 30
"""The most bytes of copies: a second run leaves out writes to more memory."""


class WrittenState:
    """A tensor that the script wrote to, and a copy of its storage from before the first write."""

    def __init__(self, tensor: Any, call: StepCall) -> None:
        self.tensor = tensor if tensor._base is None else tensor._base
        self.call = call
        """The last write to it."""
        self.unchecked = True
        """Whether it was written to since the last check."""
        self.storage = tensor.untyped_storage()
        with without_dispatch():
            self._content = self.storage.clone()

    def restore(self) -> None:
        """Write the copy to the storage; torch counts no write."""
        with without_dispatch():
            self.storage.copy_(self._content)

    def now(self) -> WrittenState:
        """Return a copy of the storage as it is now."""
        return WrittenState(self.tensor, self.call)

    def is_bad(self) -> bool:
        """Return whether the tensor has NaN or Inf now."""
        return not is_finite(self.tensor)

    def was_bad(self) -> bool:
        """Return whether the tensor had NaN or Inf before the first write."""
        before, tensor = torch.empty(0, dtype=self.tensor.dtype, device=self.tensor.device), self.tensor
        with without_dispatch():
            before.set_(self._content, tensor.storage_offset(), tensor.shape, tensor.stride())
        return not is_finite(before)


class WrittenStates:
    """The states that the script wrote to since the tape began.

    `gradients` returns the gradients of parameters, which are no states.
    """

    def __init__(self, gradients: Callable[[], Iterable[Any]]) -> None:
        self._gradients = gradients
        self._of_gradients: set[int] | None = None
        """The storages of gradients, until the next backward pass."""
        self._states: dict[int, WrittenState] = {}
        """By storage."""
        self._bytes = 0
        self._found: dict[tuple[Any, Any], int] = {}
        """How often a write by an operator at a line made NaN or Inf."""
        self.unchecked = False
        """Whether one of them was written to since the last check."""

    def __iter__(self) -> Iterator[WrittenState]:
        return iter(self._states.values())

    def writes_to(self, tensors: Iterable[Any]) -> list[StepCall]:
        """Return the last write of the script to each of the tensors since the last check."""
        if not self.unchecked:
            return []
        plain = (each for each in tensors if each.__class__ in PLAIN and each.layout is torch.strided)
        found = (self._states.get(storage_address(each)) for each in plain)
        return [state.call for state in found if state is not None]

    def clear(self) -> None:
        """Forget all states."""
        if self._states:
            self._states, self._bytes, self.unchecked = {}, 0, False
        self._of_gradients = None

    def gradients_changed(self) -> None:
        """Forget which storages are those of gradients."""
        self._of_gradients = None

    def before_write(self, call: StepCall, written: Iterable[Any], made: Callable[[], set[int]]) -> bool:
        """Copy the memory from before the step among `written`; return whether there are copies of all of it.

        `made` returns the storages that the step has made so far.
        """
        outside = [each for each in written if self._is_outside(each, made)]
        complete = bool(outside)
        for tensor in outside:
            address = storage_address(tensor)
            state = self._states.get(address)
            if state is None and (state := self._copied(tensor, call)) is not None:
                self._states[address] = state
            if state is not None:
                state.call = call
                state.unchecked = self.unchecked = True
            complete = complete and state is not None
        return complete

    def newly_bad(self) -> list[WrittenState]:
        """Return the states that became NaN or Inf by writes since the last check."""
        if not self.unchecked:
            return []
        checked = [each for each in self._states.values() if each.unchecked]
        self.unchecked = False
        for each in checked:
            each.unchecked = False
        if not suspicious([each.tensor for each in checked]):
            return []
        bad = [each for each in checked if each.is_bad() and not each.was_bad()]
        places = {(each.call.function, each.call.lines) for each in bad}
        known = {each for each in places if self._found.get(each, 0) >= MOST_FOUND}
        self._found |= {each: self._found.get(each, 0) + 1 for each in places}
        return [each for each in bad if (each.call.function, each.call.lines) not in known]

    def _is_outside(self, tensor: Any, made: Callable[[], set[int]]) -> bool:
        if tensor.__class__ not in PLAIN or tensor.layout is not torch.strided or tensor.is_meta:
            return False
        if is_wrapped(tensor):
            return False
        address = storage_address(tensor)
        if address in self._states or isinstance(tensor, torch.nn.Parameter):
            return True
        if self._of_gradients is None:
            found = (each for each in self._gradients() if each.__class__ in PLAIN)
            self._of_gradients = {storage_address(each) for each in found if each.layout is torch.strided}
        return address not in self._of_gradients and address not in made()

    def _copied(self, tensor: Any, call: StepCall) -> WrittenState | None:
        """Return a state with a copy; None for too much memory."""
        size = tensor.untyped_storage().nbytes()
        if self._bytes + size > _MOST_BYTES:
            return None
        try:
            state = WrittenState(tensor, call)
        except (RuntimeError, MemoryError):  # torch raises RuntimeError without memory.
            return None
        self._bytes += size
        return state


def named_written(states: Sequence[WrittenState], models: Mapping[str, torch.nn.Module]) -> dict[str, Any]:
    """Return the tensors of written states by name: that in a model, or that of a variable of the script."""
    if not states:
        return {}
    known = {
        storage_address(each): part
        for name, tensor in own_tensors(models)
        for part, each in dense_parts(name, tensor)
        if each.__class__ in PLAIN and each.layout is torch.strided
    }
    variables = {id(value): name for name, value in vars(sys.modules["__main__"]).items()}
    named: dict[str, Any] = {}
    for state in states:
        tensor = state.tensor
        usual = f"tensor of shape {tuple(tensor.shape)}"
        wanted = known.get(storage_address(tensor)) or variables.get(id(tensor)) or usual
        named[fresh_name(wanted, named, first=2)] = tensor
    return named
