"""Parameters to which the script gave other memory since the last update: ``p.data = t`` or ``p.set_(t)``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from nncdbg.engine.ops.aten.internals import OpOverload, is_wrapped, key_of, storage_address, without_dispatch
from nncdbg.presentation.source_files import short_path
from nncdbg.torch.finiteness import is_finite
from nncdbg.torch.step_call import StepCall, tensors_in
from nncdbg.torch.storages import tensor_at


class ReplacedMemory:
    """A parameter, the call of the step that made its memory, and its memory before; None if unknown."""

    def __init__(self, parameter: Any, call: StepCall, made: Any, before: Any) -> None:
        self.parameter, self.call, self.made = parameter, call, made
        self._before = before
        self._key = key_of(parameter)

    def restore(self) -> None:
        """Give the parameter the memory from before."""
        if self._before is not None:
            with without_dispatch():
                self.parameter.data = self._before

    def now(self) -> ReplacedMemory:
        """Return the memory of the parameter as it is now."""
        with without_dispatch():
            return ReplacedMemory(self.parameter, self.call, self.made, self.parameter.data)

    def replace(self, made: Any) -> None:
        """Give the parameter the memory that a second run of the call made."""
        with without_dispatch():
            self.parameter.data = tensor_at(self._key, made)


def replaced_memory(calls: Sequence[StepCall], parameters: Iterable[Any]) -> list[ReplacedMemory]:
    """Return the parameters with NaN or Inf in memory that an operator of these calls has made."""
    makers: dict[int, tuple[StepCall, Any]] = {}
    for call in calls:
        if isinstance(call.function, OpOverload):
            given = {storage_address(each) for each in _with_memory((call.args, call.kwargs))}
            made = {storage_address(each): (call, each) for each in _with_memory(call.result)}
            makers |= {address: found for address, found in made.items() if address not in given}
    found = []
    for parameter in _with_memory([*parameters]):
        maker = makers.get(storage_address(parameter))
        if maker is not None and not is_finite(parameter):
            found.append(ReplacedMemory(parameter, *maker, _memory_before(calls, parameter)))
    return found


def memory_notes(calls: Sequence[StepCall], named: Sequence[tuple[str, Any]]) -> list[str]:
    """Return which calls made the memory of parameters with NaN or Inf, as notes."""
    names = {id(parameter): name for name, parameter in named}
    found = replaced_memory(calls, [parameter for _, parameter in named])
    places = [(names[id(each.parameter)], each.call, (*each.call.lines, None)[0]) for each in found]
    return [
        f"before the update, {name} was given memory that {call.function} made"
        + (f", {short_path(place[0])}:{place[1]}" if place else "")
        for name, call, place in places
    ]


def _memory_before(calls: Sequence[StepCall], parameter: Any) -> Any:
    """Return the memory that a call read of a parameter before: `p.data` and views of it keep that."""
    address, shape = storage_address(parameter), parameter.shape
    results = (
        each
        for call in calls
        if any(each is parameter for each in tensors_in(call.args))
        for each in _with_memory(call.result)
    )
    return next((each for each in results if storage_address(each) != address and each.shape == shape), None)


def _with_memory(value: Any) -> list[Any]:
    return [
        each
        for each in tensors_in(value)
        if each.layout is torch.strided and not is_wrapped(each) and not each.is_meta
    ]
