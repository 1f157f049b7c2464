"""Check the gradients before each update, and record the step again when one is NaN or Inf."""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, TypeVar

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from nncdbg.engine.errors import UsageError
from nncdbg.engine.ops.aten.internals import current_autograd_node
from nncdbg.torch.finiteness import not_finite, suspicious
from nncdbg.torch.recorded_step import Models, Optimizers, RecordedStep, listed_optimizers, named_models
from nncdbg.torch.recording import Lines, user_lines
from nncdbg.torch.second_run import StepFunction, UpdateReached, owners_of, record_again
from nncdbg.torch.step_calls import StepCalls, backward
from nncdbg.torch.step_state import BufferState, RandomState
from nncdbg.torch.tape import StepCall, tensors_in

PATIENCE = 20
"""Backward passes with NaN or Inf gradients and no update, after which a gradient scaler is not trusted."""

GRADIENTS, LOSS, UPDATE = "gradients", "loss", "update"

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass
class GuardTrip:
    """A NaN or Inf that the guard found.

    `where` is "loss" or "gradients" for one that exists before the update, "update" for one that the
    optimizer made.  `step` counts the updates from 1, as `nncdbg record --step` does.
    """

    where: str
    step: int
    optimizer: torch.optim.Optimizer | None
    """The optimizer of the update; None if a gradient scaler leaves out the updates."""
    bad: dict[str, str]
    """Name of a gradient, a parameter, a moment or the loss to ``"2 NaN of 12"``."""
    lines: Lines
    """The user's lines of the update, innermost first."""
    follows: bool = False
    """Whether it comes from parameters that an earlier finding has spoiled."""
    recorded: RecordedStep | None = None
    """The step, recorded in a second run; None if it could not run again."""
    notes: list[str] = field(default_factory=list)


class Guard:
    """Watches optimizers while it is entered; `on_trip` is called for each NaN or Inf.

    It returns True to leave out the update.  `model` and `optimizer` are as for `record`; without an
    optimizer, all are watched, and without a model, those with the optimizer's parameters are.
    """

    def __init__(
        self, model: Models | None, optimizer: Optimizers | None, on_trip: Callable[[GuardTrip], bool | None]
    ) -> None:
        self.steps = 0
        """The number of updates so far."""
        self.skipped_by_scaler = 0
        """The updates that a gradient scaler left out because of an Inf or NaN."""
        self._models = named_models(model)
        self._optimizers = listed_optimizers(optimizer)
        self._on_trip = on_trip
        self._calls = StepCalls(self._before_module, self._after_backward)
        self._tape = self._calls.tape
        self._seen: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        """Optimizers that made an update."""
        self._updating: list[torch.optim.Optimizer] = []
        self._in_closure = False
        self._huge = False
        """Whether squares of the gradients overflow."""
        self._running: StepFunction | None = None
        """The call of a step function that runs now."""
        self._rerunning = False
        self._spoiled: set[str] = set()
        """Parameters and moments that are NaN or Inf since a finding."""
        self._tripped = False
        """Whether this update uses gradients that were found to be NaN or Inf."""
        self._entered = ExitStack()

    def __enter__(self) -> Guard:
        if _ACTIVE:
            raise UsageError("a watch is active already", hint="use one watch with a list of all optimizers")
        entered = self._entered
        _ACTIVE.append(self)
        entered.callback(_ACTIVE.remove, self)
        entered.callback(register_optimizer_step_pre_hook(self._before_update).remove)
        entered.callback(register_optimizer_step_post_hook(self._after_update).remove)
        entered.enter_context(self._calls)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._entered:
            if kind is None and not self._tape.paused:
                self._forget_finished()

    def run_step(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function that is a whole training step."""
        if self._running is not None or self._rerunning or not self._calls.here:
            return function(*args, **kwargs)
        modules = self._models.values() or self._calls.modules
        buffers = [BufferState(module.buffers()) for module in modules]
        zeroed = [each for each in self._parameters() if each.grad is not None]
        self._running = StepFunction(function, args, kwargs, RandomState(), buffers, zeroed, self.steps)
        try:
            return function(*args, **kwargs)
        finally:
            self._running = None

    def leave_process(self) -> None:
        """Stop watching: this process is a fork, such as a worker of a DataLoader."""
        self._tape.end()

    # -- before the update -----------------------------------------------------------------

    def _before_module(self) -> None:
        """Prepare for the forward pass of a step, or of a part of it."""
        if self._rerunning:
            return
        if self._updating and not self._in_closure:
            self._abandon_update()
        if not self._tape.paused:
            self._forget_finished()

    def _after_backward(self, call: StepCall) -> None:
        call.gradients = [(each, each.grad) for each in self._parameters() if each.grad is not None]

    def _forget_finished(self) -> None:
        """Forget the calls of earlier parts of an accumulated gradient, if that is finite.

        A gradient scaler leaves out updates, and is right if only gradients are Inf: the loss was scaled too
        much.  A loss of NaN, or `PATIENCE` of such passes, are a finding.
        """
        passes = [call for call in self._tape.calls if call.function is backward]
        if not passes:
            return
        gradients = {id(each): each.grad for call in passes for each, _ in call.gradients}
        lost = any("NaN" in not_finite(each) for each in self._losses())
        if not lost and not suspicious(each for each in gradients.values() if each is not None):
            if self._alone():
                self._tape.clear()
        elif lost or len(passes) >= PATIENCE:
            self._tape.pause()
            try:
                self._check(None, passes[-1].lines, self._tape_or_function())
            finally:
                self._tape.clear()
                self._tape.resume()

    def _before_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """Check the gradients, or return arguments with a closure that checks its own."""
        if self._rerunning:
            if self._running is not None:
                raise UpdateReached
            _drop_gradients(_parameters_of(optimizer))
            return None
        if not self._calls.here or not self._watches(optimizer):
            return None
        if self._updating and not self._in_closure and optimizer in self._updating:
            self._abandon_update()
        self._seen.add(optimizer)
        self._updating.append(optimizer)
        if len(self._updating) > 1:
            return None
        self._tape.pause()
        self._huge = self._tripped = False
        lines = user_lines(sys._getframe(2))
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if callable(closure):
            checked = partial(self._checked_closure, optimizer, closure, lines)
            if "closure" in kwargs:
                return args, {**kwargs, "closure": checked}
            return (args[0], checked, *args[2:]), kwargs
        if not self._handled_by_scaler(optimizer):
            self._check(optimizer, lines, self._tape_or_function())
        return None

    def _abandon_update(self) -> None:
        """Start anew: the last update raised, so that its end was not seen."""
        self._updating.clear()
        self._tape.clear()
        self._tape.resume()

    def _handled_by_scaler(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether a fused optimizer leaves out this update, as its gradient scaler tells it to."""
        found = getattr(optimizer, "found_inf", None)
        skipped = isinstance(found, torch.Tensor) and bool(found.item())
        self.skipped_by_scaler += skipped
        return skipped

    def _checked_closure(
        self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any], lines: Lines
    ) -> Any:
        """Evaluate a closure and check its gradients: it can run again with the same parameters."""
        random = RandomState()
        buffers = [BufferState(module.buffers()) for module in self._calls.modules]
        self._in_closure = True
        try:
            result = closure()
        finally:
            self._in_closure = False
        again = StepFunction(closure, (), {}, random, buffers, (), self.steps)
        self._check(optimizer, lines, again, [*tensors_in(result)])
        return result

    def _tape_or_function(self) -> Any:
        """Return what can run again: the step function if it has made no update yet, else the tape."""
        running = self._running
        return running if running is not None and running.updates == self.steps else self._tape

    def _check(
        self, optimizer: torch.optim.Optimizer | None, lines: Lines, again: Any, losses: Sequence[Any] = ()
    ) -> None:
        """Check gradients and losses before an update."""
        parameters = [*(self._parameters() if optimizer is None else _parameters_of(optimizer))]
        gradients = [each.grad for each in parameters if each.grad is not None]
        losses = [*losses, *self._losses()]
        if not suspicious([*gradients, *losses]):
            return
        self._huge = True
        lost = [counts for each in losses if (counts := not_finite(each))]
        bad = {"loss": lost[0]} if lost else {}
        where = LOSS if bad else GRADIENTS
        named = self._named(parameters)
        bad |= {
            f"{name}.grad": counts
            for name, each in named
            if each.grad is not None and (counts := not_finite(each.grad))
        }
        if bad:
            trip = GuardTrip(where, self.steps + 1, optimizer, bad, lines)
            trip.follows = any(name in self._spoiled and not_finite(each) for name, each in named)
            if not trip.follows:
                self._record_again(trip, parameters, again)
            self._react(trip, parameters)

    def _react(self, trip: GuardTrip, parameters: Sequence[Any]) -> None:
        try:
            self._tripped = not self._on_trip(trip)
            if not self._tripped:
                _drop_gradients(parameters)
        except BaseException:
            if self._updating:
                self._abandon_update()
            raise

    def _record_again(self, trip: GuardTrip, parameters: Sequence[Any], again: Any) -> None:
        if current_autograd_node() is not None:
            trip.notes.append("the update runs inside the backward pass, so the step cannot run again")
            return
        models = self._models or owners_of(parameters)
        running = self._running
        self._running = again if isinstance(again, StepFunction) else None
        self._rerunning = True
        try:
            trip.recorded = record_again(
                again, self._trained(), models, self._optimizers or [*self._seen], trip.lines, trip.notes
            )
        finally:
            self._running, self._rerunning = running, False

    # -- after the update ------------------------------------------------------------------

    def _after_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._rerunning or optimizer not in self._updating:
            return
        self._updating.remove(optimizer)
        if self._updating:
            return
        try:
            self._check_update(optimizer, user_lines(sys._getframe(2)))
        finally:
            self.steps += 1
            self._calls.stop_learning()
            self._tape.updated(optimizer, self._optimizers or [*self._seen])
            self._tape.resume()

    def _check_update(self, optimizer: torch.optim.Optimizer, lines: Lines) -> None:
        """Check the parameters after an update, and the moments where squares of gradients overflow."""
        parameters = [*_parameters_of(optimizer)]
        moments = tensors_in([*optimizer.state.values()]) if self._huge else ()
        if not suspicious([*parameters, *moments]):
            return
        named = self._named(parameters)
        names = {id(each): name for name, each in named}
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                named += [(f"{names.get(id(parameter), 'parameter')}.{key}", t) for t in tensors_in(value)]
        bad = {name: counts for name, each in named if (counts := not_finite(each))}
        new = {name: counts for name, counts in bad.items() if name not in self._spoiled}
        self._spoiled |= new.keys()
        if new and not self._tripped:
            self._on_trip(GuardTrip(UPDATE, self.steps + 1, optimizer, new, lines))

    # -- tensors ---------------------------------------------------------------------------

    def _alone(self) -> bool:
        """Return whether there is one optimizer, as far as is known."""
        return len(self._optimizers or self._seen) <= 1

    def _watches(self, optimizer: torch.optim.Optimizer) -> bool:
        return not self._optimizers or any(optimizer is each for each in self._optimizers)

    def _parameters(self) -> Iterator[Any]:
        """Yield the parameters of the optimizers that are known so far, else of the modules."""
        known = self._optimizers or [*self._seen]
        for optimizer in known:
            yield from _parameters_of(optimizer)
        if not known:
            for module in self._models.values() or self._calls.modules:
                yield from module.parameters()

    def _trained(self) -> list[Any]:
        """Return all parameters to which a backward pass of this step may have added a gradient."""
        found = {id(each): each for each in self._parameters()}
        for module in (*self._models.values(), *self._calls.modules):
            found |= {id(each): each for each in module.parameters()}
        return [*found.values()]

    def _losses(self) -> Iterator[Any]:
        """Yield the tensors from which the backward passes of this step started."""
        for call in self._tape.calls:
            if call.function is backward:
                yield from tensors_in(call.args[:1])
                yield from tensors_in(call.kwargs.get("tensors"))

    def _named(self, parameters: Sequence[Any]) -> list[tuple[str, Any]]:
        """Return parameters with their names."""
        names = {
            id(parameter): f"{prefix}.{name}" if prefix else name
            for prefix, model in (self._models or owners_of(parameters)).items()
            for name, parameter in model.named_parameters()
        }
        return [(names.get(id(each), f"parameter{n}"), each) for n, each in enumerate(parameters)]


_ACTIVE: list[Guard] = []
"""The guard that is entered, if any."""


def step(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Mark a function as one whole training step: under a watch, it runs again when a NaN appears.

    Its batch must be its arguments: an iterator gives the second run another batch.
    """

    @functools.wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if not _ACTIVE:
            return function(*args, **kwargs)
        result: Result = _ACTIVE[-1].run_step(function, args, kwargs)
        return result

    return run


def _leave_process() -> None:
    for guard in _ACTIVE:
        guard.leave_process()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_process)


def _parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _drop_gradients(parameters: Sequence[Any] | Iterator[Any]) -> None:
    """Make the update change nothing: optimizers leave out parameters without a gradient."""
    for parameter in parameters:
        parameter.grad = None
