"""Run a step of the user again under the recorder: a function, or the calls of a tape."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import FrameType
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
from nncdbg.torch.finiteness import is_finite, not_finite, suspicious
from nncdbg.torch.guard_findings import ERROR, RESULTS, GuardTrip
from nncdbg.torch.module_states import ModuleState, WrittenState
from nncdbg.torch.named_models import Trained
from nncdbg.torch.source_frames import TapedFrames
from nncdbg.torch.source_lines import call_again, place_of, user_frames
from nncdbg.torch.step_call import Evaluation, StepCall, history_of, tensors_in
from nncdbg.torch.step_recording import recording_of
from nncdbg.torch.step_state import KeptState, RandomState, rerun_from
from nncdbg.torch.storages import Key, tensor_at
from nncdbg.torch.tape import FORGOTTEN, Tape

# -- replaced memory of parameters ---------------------------------------------------------


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
    return [
        f"before the update, {names[id(each.parameter)]} was given memory that {each.call.function} made"
        f"{_at(each.call)}"
        for each in found
    ]


def _at(call: StepCall) -> str:
    """Return the place of a call, after a comma; empty without one."""
    return f", {place_of(call.lines)}" if call.lines else ""


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
    return [each for each in tensors_in(value) if _has_memory(each) and not each.is_meta]


# -- the calls of a tape -------------------------------------------------------------------

UNREPEATED = "the result of a call without gradients is an input, as it cannot run again"
"""How the note about such a call begins."""


def rerun_calls(
    calls: Sequence[StepCall],
    notes: list[str],
    gradients: Sequence[tuple[Any, Any]] = (),
    replaced: Sequence[ReplacedMemory] = (),
    running: Sequence[FrameType] = (),
) -> None:
    """Run calls again, and append to `notes` what could not be followed.  Raises what the calls raise.

    `gradients` are the parameters and their gradients at the end of the first run.  `running` are the frames
    of the user that made calls and still run, innermost first.
    """
    frames = TapedFrames(calls, running)
    rerun = _Rerun(notes, _storages_with_gradient(calls), frames, replaced)
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
        self,
        notes: list[str],
        copied: Container[int],
        frames: TapedFrames,
        replaced: Sequence[ReplacedMemory] = (),
    ) -> None:
        self._notes = notes
        self._frames = frames
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
        outer = self._frames.enter(call, self._now)
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
            result = call_again(call.function, args, kwargs, call.lines, outer)
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
            self._notes.append(f"{UNREPEATED}: {name}{_at(call)}, whose result has {counts}")
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

    def _now(self, tensor: Any) -> Any:
        """Return the tensor of this run for one of the first run, as it is now."""
        found = self._found(tensor)
        return tensor if found is None else found

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


# -- the second run ------------------------------------------------------------------------

_EAGER = "functions of torch.compile that are called outside of modules run eagerly under this watch"


@dataclass
class StepFunction:
    """A call of a function that is a whole step, or of a closure: it can run again."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    random: RandomState
    before: list[KeptState]
    """The states of modules before the call."""
    zeroed: Sequence[Any]
    """The parameters that had a gradient before the call."""
    updates: int
    """The number of updates before the call."""


class UpdateReached(BaseException):
    """A second run of a `StepFunction` has reached the update.  No `except Exception` of a user stops it."""


def record_again(
    step: StepFunction | Tape,
    trip: GuardTrip,
    trained: Trained,
    models: Mapping[str, torch.nn.Module],
    states: Callable[[], Mapping[str, Any]],
    bad: Sequence[ModuleState | WrittenState],
    replaced: Sequence[ReplacedMemory],
) -> None:
    """Enter a second run of a step, up to its update, in a trip; everything is as before afterwards.

    `states` are those of `recording_of`, and `bad` are states with NaN or Inf.  What could not run again is
    added to the notes.  `replaced` are parameters whose memory the calls of a tape made.
    """
    parameters, notes = trained.all_parameters(), trip.notes
    failed = trip.where in (RESULTS, ERROR)
    again: Callable[[], Any]
    state: AbstractContextManager[None]
    if isinstance(step, StepFunction):
        state = rerun_from(step.random, step.before, parameters, step.zeroed)
        again = partial(call_again, step.function, step.args, step.kwargs, trip.lines)
    else:
        if step.start is None or not step.calls:
            notes.append(
                "the step has too many operators outside of modules to run again"
                if step.overflowed
                else "the step cannot run again: no part of it was seen"
            )
            return
        state = rerun_from(step.start, [*step.kept.values(), *step.written, *replaced], parameters)
        gradients = [(each, each.grad) for each in parameters if each.grad is not None]
        running, _ = user_frames(sys._getframe(1))
        again = partial(rerun_calls, step.calls, notes, gradients, replaced, running)
    if isinstance(step, Tape) and step.has_forgotten:
        notes.append(FORGOTTEN)
    ran_eagerly = isinstance(step, Tape) and step.called_compiled
    recorded = None
    try:
        with state:
            try:
                with recording_of(models, trained.optimizers, states, failed=failed) as recorded:
                    again()
            except UpdateReached:
                pass
            if recorded is not None:
                found = [each.grad for each in parameters if each.grad is not None]
                recorded.bad_gradients = suspicious(found) and any(map(not_finite, found)) if found else None
                recorded.same_states = all(each.is_bad() for each in bad)
    except (Exception, SystemExit) as error:  # noqa: BLE001  code of the user, which may not be able to run twice
        if not failed:
            notes.append(f"the second run of the step ended early: {type(error).__name__}: {error}")
    if recorded is not None and recorded.failure is not None:
        notes.append(recorded.failure.message)
        return
    if ran_eagerly and recorded is not None and not recorded.notes:
        notes.append(_EAGER)
    trip.recorded = recorded
