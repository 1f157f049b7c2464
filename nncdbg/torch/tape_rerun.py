"""Run the calls of a tape again, on the tensors that the new run makes."""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from nncdbg.engine.ops.aten.internals import (
    OpOverload,
    call_as_kernel,
    is_wrapped,
    key_of,
    storage_address,
    without_dispatch,
)
from nncdbg.engine.ops.aten.signatures import signature_of, written_tensors
from nncdbg.presentation.source_files import short_path
from nncdbg.torch.finiteness import not_finite
from nncdbg.torch.replaced_memory import ReplacedMemory
from nncdbg.torch.source_lines import call_again
from nncdbg.torch.step_call import Evaluation, StepCall, history_of, tensors_in
from nncdbg.torch.storages import Key

UNREPEATED = "the result of a call without gradients is an input, as it cannot run again"
"""How the note about such a call begins."""


def rerun_calls(
    calls: Sequence[StepCall],
    notes: list[str],
    gradients: Sequence[tuple[Any, Any]] = (),
    replaced: Sequence[ReplacedMemory] = (),
) -> None:
    """Run calls again, and append to `notes` what could not be followed.  Raises what the calls raise.

    `gradients` are the parameters and their gradients at the end of the first run.
    """
    rerun = _Rerun(notes, _storages_with_gradient(calls), replaced)
    generators = {call.generator[0] for call in calls if call.generator is not None}
    states = [(each, each.get_state()) for each in generators]
    try:
        call_as_kernel(partial(rerun.run_all, calls))
        rerun.assign(gradients)
    finally:
        for generator, state in states:
            generator.set_state(state)


class _Rerun:
    """The tensors of a second run."""

    def __init__(
        self, notes: list[str], copied: Container[int], replaced: Sequence[ReplacedMemory] = ()
    ) -> None:
        self._notes = notes
        self._replaced = replaced
        self._copied = copied
        """Storages of which this run uses a copy, if it has not made them itself."""
        self._noting = False
        """Whether the result of the call needs a gradient."""
        self._known: dict[int, Any] = {}
        """The identity of a tensor of the first run to its tensor in this one."""
        self._memory: dict[tuple[Key, bool], Any] = {}
        """The same by memory, for a tensor that autograd gave a new object."""

    def run_all(self, calls: Sequence[StepCall]) -> None:
        for call in calls:
            self._run(call)

    def _run(self, call: StepCall) -> None:
        if isinstance(call, Evaluation) and not self._repeats(call):
            return
        if isinstance(call.function, OpOverload) and not self._copy_written(call):
            return
        self._noting = any(each.requires_grad for each in tensors_in(call.result))
        args, kwargs = self._mapped(call.args), self._mapped(call.kwargs)
        if call.random is not None:
            call.random.restore()
        if call.generator is not None:
            call.generator[0].set_state(call.generator[1])
        autocast: Any = nullcontext()
        if call.autocast is not None:
            autocast = torch.autocast(call.autocast[0], call.autocast[1])
        with torch.set_grad_enabled(call.gradients_enabled), autocast:
            result = call_again(call.function, args, kwargs, call.lines)
        made = call.result if isinstance(call, Evaluation) else tensors_in(call.result)
        for before, now in zip(made, tensors_in(result), strict=False):
            if isinstance(before, torch.Tensor):
                self._bind(before, now)
        for each in self._replaced:
            if each.call is call:
                each.replace(self._found(each.made))
        for parameter, gradient in zip(call.parameters, call.gradients, strict=True):
            if gradient is not None and parameter.grad is not None:
                self._bind(gradient, parameter.grad)

    def _repeats(self, call: Evaluation) -> bool:
        """Return whether a call without gradients can run again, and its result still exists."""
        results = [*tensors_in(call.result)]
        if call.is_complete:
            return bool(results)
        counts = next((found for each in results if (found := not_finite(each))), "")
        if counts:
            name = getattr(call.function, "_get_name", lambda: "a function")()
            place = f", {short_path(call.lines[0][0])}:{call.lines[0][1]}" if call.lines else ""
            self._notes.append(f"{UNREPEATED}: {name}{place}, whose result has {counts}")
        return False

    def assign(self, gradients: Sequence[tuple[Any, Any]]) -> None:
        """Give parameters the gradients that the script assigned: ``parameter.grad = gradient``."""
        for parameter, gradient in gradients:
            found = self._found(gradient)
            if parameter.grad is None and found is not None:
                parameter.grad = found

    def _bind(self, before: Any, now: Any) -> None:
        self._known[id(before)] = now
        memory = _memory(before)
        if memory is not None:
            self._memory[memory] = now

    def _copy_written(self, call: StepCall) -> bool:
        """Let an operator write to a copy of a tensor that this run did not make.

        Return False for an operator that only writes to memory from before the step, without a copy of that:
        it has the new content already.
        """
        signature = signature_of(call.function)
        written = written_tensors(signature, call.args, call.kwargs)
        if call.rewrites and not _writes_gradient(call, written):
            return True
        if any(isinstance(each, torch.nn.Parameter) for each in written):
            return False
        only_writes = signature.in_place or not signature.results
        if only_writes and not _writes_gradient(call, written) and all(map(self._is_from_before, written)):
            return False
        for tensor in written:
            if self._found(tensor) is None:
                with without_dispatch():
                    self._bind(tensor, tensor.detach().clone())
        return True

    def _is_from_before(self, tensor: Any) -> bool:
        """Return whether a tensor that the first run wrote to has memory from before the step."""
        if not _has_memory(tensor):
            return False
        found = self._found(tensor)
        return found is None or storage_address(found) == storage_address(tensor)

    def _found(self, tensor: Any) -> Any:
        known = self._known.get(id(tensor))
        if known is not None:
            return known
        memory = _memory(tensor)
        return None if memory is None else self._memory.get(memory)

    def _new(self, tensor: Any) -> Any:
        """Return the tensor of this run for one of the first run; one from outside stays."""
        found = self._found(tensor)
        if found is not None:
            if tensor.requires_grad and history_of(tensor) is None and history_of(found) is None:
                found.requires_grad_()
            return found
        memory = _memory(tensor)
        if memory is not None and memory[0][0] in self._copied:
            with without_dispatch():
                copy = tensor.detach().clone()
            self._bind(tensor, copy)
            return copy
        if history_of(tensor) is not None:
            note = f"a tensor of shape {tuple(tensor.shape)} is from before the step: its gradient ends there"
            if self._noting and note not in self._notes:
                self._notes.append(note)
            return tensor.detach()
        return tensor

    def _mapped(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._new(value)
        if type(value) in (list, tuple):
            return type(value)(self._mapped(item) for item in value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self._mapped(item) for item in value))
        if type(value) is dict:
            return {name: self._mapped(item) for name, item in value.items()}
        return value


def _storages_with_gradient(calls: Sequence[StepCall]) -> set[int]:
    """Return the storages that operators write values with a gradient to."""
    found: set[int] = set()
    for call in calls:
        if isinstance(call.function, OpOverload):
            written = written_tensors(signature_of(call.function), call.args, call.kwargs)
            if _writes_gradient(call, written):
                found |= {storage_address(tensor) for tensor in written if _has_memory(tensor)}
    return found


def _writes_gradient(call: StepCall, written: Sequence[Any]) -> bool:
    """Return whether a write connects a tensor to the graph of autograd."""
    return call.gradients_enabled and any(each.requires_grad for each in written)


def _memory(tensor: Any) -> tuple[Key, bool] | None:
    if isinstance(tensor, torch.nn.Parameter) or not _has_memory(tensor):
        return None
    return key_of(tensor), tensor.requires_grad


def _has_memory(tensor: Any) -> bool:
    return tensor.layout == torch.strided and not is_wrapped(tensor)
