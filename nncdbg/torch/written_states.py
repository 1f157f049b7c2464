"""The memory from before a step that the script writes to between modules, backward passes and updates.

It is a moving average of parameters, a clipped or normalized weight, or the weights of an update by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from nncdbg.engine.ops.aten.internals import is_wrapped, storage_address, without_dispatch
from nncdbg.torch.finiteness import is_finite, suspicious
from nncdbg.torch.module_states import MOST_FOUND
from nncdbg.torch.named_models import dense_parts, own_tensors

if TYPE_CHECKING:
    from nncdbg.torch.step_call import StepCall

_MOST_BYTES = 1 << 30
"""The most bytes of copies: a second run leaves out writes to more memory."""

_PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Classes of tensors that have memory of their own."""


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
        plain = (each for each in tensors if each.__class__ in _PLAIN and each.layout is torch.strided)
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
        if tensor.__class__ not in _PLAIN or tensor.layout is not torch.strided or tensor.is_meta:
            return False
        if is_wrapped(tensor):
            return False
        address = storage_address(tensor)
        if address in self._states or isinstance(tensor, torch.nn.Parameter):
            return True
        if self._of_gradients is None:
            found = (each for each in self._gradients() if each.__class__ in _PLAIN)
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
        if each.__class__ in _PLAIN and each.layout is torch.strided
    }
    variables = {id(value): name for name, value in vars(sys.modules["__main__"]).items()}
    named: dict[str, Any] = {}
    for state in states:
        tensor = state.tensor
        usual = f"tensor of shape {tuple(tensor.shape)}"
        wanted = known.get(storage_address(tensor)) or variables.get(id(tensor)) or usual
        name, number = wanted, 1
        while name in named:
            number += 1
            name = f"{wanted}.{number}"
        named[name] = tensor
    return named
