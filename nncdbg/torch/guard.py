"""Check the gradients before each update, and record the step again when one is NaN or Inf."""

from __future__ import annotations

import os
import re
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from inspect import CO_OPTIMIZED
from traceback import walk_tb
from types import FrameType
from typing import Any

import torch

from nncdbg.engine.ops.aten.internals import current_autograd_node, not_compiled, seen_by_functions
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.presentation.screen import Screen
from nncdbg.torch import guard_kernels
from nncdbg.torch.finiteness import not_finite, suspicious
from nncdbg.torch.guard_findings import (
    ERROR,
    GRADIENTS,
    LOSS,
    RESULTS,
    STATES,
    GuardTrip,
    OriginWatch,
    StepObserver,
    UpdateCounts,
)
from nncdbg.torch.hooks import on_updates
from nncdbg.torch.live.training import RecordingWatch
from nncdbg.torch.module_states import ModuleState, ModuleStates, WrittenState, named_states, named_written
from nncdbg.torch.module_watch import ModuleWatch
from nncdbg.torch.named_models import (
    Models,
    Optimizers,
    Trained,
    closure_of,
    drop_gradients,
    gradients_of,
    parameters_of,
)
from nncdbg.torch.operator_watch import OperatorWatch
from nncdbg.torch.ranks import bucket_notes, levels_of_ranks, rank_notes, searching
from nncdbg.torch.recorded_step import RecordedStep
from nncdbg.torch.second_run import StepFunction, UpdateReached, memory_notes, record_again, replaced_memory
from nncdbg.torch.sharded_tensors import meshes_of
from nncdbg.torch.source_lines import Lines, is_user_code, user_lines
from nncdbg.torch.step_call import BACKWARD, GRADIENT, StepCall, tensors_in
from nncdbg.torch.step_calls import StepCalls
from nncdbg.torch.step_function import ACTIVE
from nncdbg.torch.step_state import BufferState, KeptBuffers, KeptState, RandomState
from nncdbg.torch.updates import SafeUpdates, UpdateCheck

PATIENCE = 20
"""The number of backward passes without an update, or of skips by a gradient scaler, that is a finding."""

_MANY_UPDATES = 1000
"""After so many updates, the library of the guard is compiled for the next training."""

_FOLLOWS, _NEW, _LOST = 1, 2, 3
"""Levels of what a rank finds: what follows from an earlier finding, something new, and a new loss of NaN."""

_ONE_RANK = (
    "the step of shards runs again only before an update, where all ranks know of it: it communicates; to "
    "record each step as it runs, use --tier live"
)

_WATCHES: Mapping[str, Callable[[Trained, ModuleStates], OriginWatch]] = {
    "hooks": lambda trained, states: ModuleWatch(),
    "native": lambda trained, states: OperatorWatch(),
    "live": RecordingWatch,
}
"""What a tier observes besides gradients and parameters."""


class Guard:
    """Watches optimizers while it is entered; `on_trip` is called for each NaN or Inf.

    It returns True to leave out the update.  `model` and `optimizer` are as for `record`; without an
    optimizer, all are watched, and without a model, those with the optimizer's parameters are.  With
    `keep_update`, parameters and moments are copied before each update, so that it can run again.  With the
    tier "hooks", the outputs of modules and their gradients are checked too, to name the first bad module;
    with "native", the results of operators.  With "live", each step is recorded as it runs.
    `counts` is increased with each update, and `observer` is called at each step.

    Raises UsageError if the tier "native" cannot be compiled.
    """

    def __init__(
        self,
        model: Models | None,
        optimizer: Optimizers | None,
        on_trip: Callable[[GuardTrip], bool | None],
        *,
        keep_update: bool = False,
        tier: str = "guard",
        counts: UpdateCounts | None = None,
        observer: StepObserver | None = None,
    ) -> None:
        self.counts = UpdateCounts() if counts is None else counts
        self._skips = 0
        """Those of them that the optimizer did not begin, and that `steps` does not count."""
        self._skipped = False
        """Whether the step of the last backward pass is one of them."""
        self._skips_in_row: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = (
            weakref.WeakKeyDictionary()
        )
        """The updates that a gradient scaler left out since the last one of an optimizer."""
        self._skipping = False
        """Whether it left out any so far."""
        self._on_trip = on_trip
        self._observes = observer is not None
        self._observer = observer or StepObserver()
        self._calls = StepCalls(
            self._before_module,
            self._after_backward,
            before_evaluation=self._before_evaluation,
            gradients=lambda: () if self._alone else gradients_of(self._trained.all_parameters()),
            repeatable=tier != "live",
        )
        self.tape = self._calls.tape
        self._runs_again = tier != "live"
        self._trained = Trained(model, optimizer, self._calls.modules)
        self._states = ModuleStates(
            self._trained.models.values(), self._calls.modules, trained=not self._runs_again
        )
        watch = _WATCHES.get(tier)
        self._watch: OriginWatch | None = None if watch is None else watch(self._trained, self._states)
        self._updates = UpdateCheck(self._trained, keeps=keep_update)
        self._safe_updates = SafeUpdates(only_large=self._watch is None or not self._watch.skips_safe_updates)
        self._safe = False
        """Whether this update can make no NaN and no Inf, so that nothing of it is checked."""
        self._sharded: weakref.WeakKeyDictionary[torch.optim.Optimizer, bool] = weakref.WeakKeyDictionary()
        """Whether other ranks have shards of the parameters of an optimizer."""
        self._updating: list[torch.optim.Optimizer] = []
        self._in_closure = False
        self._huge = False
        """Whether squares of the gradients overflow."""
        self._running: StepFunction | None = None
        """The call of a step function that runs now."""
        self._buffers = KeptBuffers()
        """Those of the modules before a call of a step function."""
        self._rerunning = False
        self._forked = False
        """Whether this process is a fork that has made no update so far."""
        self._found_alone = False
        """Whether a NaN was found in a training without an optimizer: its parameters follow from it."""
        self._tripped = False
        """Whether this update uses gradients that were found to be NaN or Inf."""
        self._reported: list[weakref.ref[torch.Tensor]] = []
        """The gradients that accumulate now, if a part of them was found to be NaN or Inf."""
        self._entered = ExitStack()

    def __enter__(self) -> Guard:
        if ACTIVE:
            raise UsageError("a watch is active already", hint="use one watch with a list of all optimizers")
        entered = self._entered
        entered.callback(self._release)
        ACTIVE.append(self)
        entered.callback(ACTIVE.remove, self)
        entered.enter_context(guard_kernels.using_library())
        on_updates(entered, self._before_update, self._after_update, self._after_skip)
        if self._watch is not None:
            # Before the tape, whose dispatch mode must be the innermost one so that it can be left.
            self.tape.own_work.watch = self._watch
            entered.enter_context(self._watch)
        entered.enter_context(self._calls)
        return self

    def __exit__(self, kind: object, error: BaseException | None = None, *_: object) -> None:
        with self._entered:
            if not self._calls.here:
                return  # A forked process.
            # An observer saves the step that failed itself.
            if error is not None and not self._updating and not self._observes:
                if isinstance(error, (Exception, SystemExit)) and not isinstance(error, NncdbgError):
                    self._check_results(error)
            elif kind is None and not self.tape.paused:
                self._check_written()
                self._check_states(None, self.tape)

    def _release(self) -> None:
        """Let go of the objects of the user: this object and its parts stay until a garbage collection."""
        for part in (self._trained, self._states, self._buffers):
            part.clear()
        del self._on_trip, self._observer

    def run_step(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function that is a whole training step."""
        if self._running is not None or self._rerunning or not self._runs_again or not self._calls.here:
            return function(*args, **kwargs)
        with self.tape.own_work:
            kept = self._with_other_states([*map(self._buffers.of, self._trained.modules)])
        zeroed = [each for each in self._trained.parameters() if each.grad is not None]
        self._running = StepFunction(function, args, kwargs, RandomState(), kept, zeroed, self.counts.steps)
        try:
            return function(*args, **kwargs)
        finally:
            self._running = None

    @contextmanager
    def marked_step(self) -> Iterator[None]:
        """Check the results of the block, if it makes no update; without gradients, too."""
        if not self._calls.here or self._calls.marked or self._rerunning:
            yield
            return
        updates, tape = self.counts.steps, self.tape
        self._calls.marked = True
        try:
            yield
            if self.counts.steps == updates and not tape.paused:
                self._check_results(None)
                self.counts.passes += 1
                self.counts.of_modules_only += not self._runs_again
                tape.clear()
                if isinstance(self._watch, RecordingWatch):
                    self._watch.pass_ended()
        finally:
            self._calls.marked = False

    @property
    def here(self) -> bool:
        """Whether this is the thread of the training."""
        return self._calls.here

    def leave_process(self) -> None:
        """Stop watching: this process is a fork, such as a worker of a DataLoader."""
        if self._watch is not None:
            self._watch.active = False
        self._calls.leave_process()
        self._forked = True

    def record_step(self, notes: list[str]) -> RecordedStep | None:
        """Record a second run of the step so far; everything is as before afterwards.

        Why it could not run again is appended to `notes`.  None if nothing ran.
        """
        parameters = self._trained.parameters()
        trip = self._trip(LOSS, {}, None, ())
        with self.tape.left():
            self._record_again(trip, parameters, self._tape_or_function())
        notes += trip.notes
        return trip.recorded

    # -- before the update -----------------------------------------------------------------

    def _before_module(self) -> None:
        """Prepare for the forward pass of a step, or of a part of it."""
        if self._rerunning:
            return
        if self._updating and not self._in_closure:
            self._abandon_update()
        if not self.tape.paused:
            self._check_written()
        self._keep_states()
        if self._observes:
            with self.tape.own_work:
                self._observer.step_begins()

    def _before_evaluation(self) -> None:
        """Prepare for a module that computes no gradients, whose result a loss may need."""
        if self._runs_again and not self._rerunning:
            self._keep_states()
            self.tape.drop_unused()

    def _keep_states(self) -> None:
        """Keep the states of modules that are no buffers, if the step has none yet."""
        states, kept = self._states, self.tape.kept
        if not states.followed:
            with self.tape.own_work:
                states.follow()
        if states.has_others and id(self) not in kept:
            with self.tape.own_work:
                kept[id(self)] = states.keep()

    def _check_written(self) -> None:
        """Check what the script wrote to, and forget parts of the step that are finished."""
        tape = self.tape
        passes = self._passes() if self._alone and not self._calls.marked else []
        update = tape.written.writes_to(self._trained.parameters()) if passes else []
        if update:  # By hand.
            self._end_pass(passes[-1], update)
        elif tape.written.unchecked or not self._runs_again:
            self._check_states(None, tape)
        if tape.calls:
            self._forget_finished()
            tape.drop_unused()

    def _with_other_states(self, buffers: Sequence[KeptState]) -> list[KeptState]:
        """Return what a second run needs besides buffers, too."""
        return [*buffers, *([self._states.keep()] if self._states.has_others else [])]

    @property
    def _alone(self) -> bool:
        """Whether no optimizer is known: a step is a backward pass, or is marked."""
        return not self._trained.optimizers

    def _after_backward(self, call: StepCall) -> None:
        if call.name == BACKWARD:
            call.parameters = self._trained.parameters()
        elif not self._alone or call.kwargs.get("create_graph"):
            return  # Gradients that are a part of a loss, most often.
        if self._rerunning:
            call.gradients = gradients_of(call.parameters)
            return
        without_modules = self._alone and not self._calls.modules
        if without_modules:
            # The tensors with a gradient among the arguments that no call has made.
            calls = self.tape.calls
            given = {id(each): each for one in calls for each in tensors_in((one.args, one.kwargs))}
            self._trained.leaves = [each for each in given.values() if each.requires_grad and each.is_leaf]
            if call.name == BACKWARD:
                call.parameters = [each for each in self._trained.leaves if each.grad is not None]
        call.gradients = gradients_of(call.parameters)
        self._skipped = False
        self.counts.passes += self._alone and not self._calls.marked
        if self._observes:
            with self.tape.own_work:
                self._observer.losses(_losses_of(call))
        if self._alone and not self._calls.marked and isinstance(self._watch, RecordingWatch):
            made = [*call.gradients, *tensors_in(call.result), *_losses_of(call)]
            with self.tape.own_work:
                if not suspicious([each for each in made if each is not None]):
                    self._watch.pass_ended()
        if without_modules and not self._calls.marked:
            self._end_pass(call)

    def _end_pass(self, call: StepCall, last: Sequence[StepCall] = ()) -> None:
        """Check a step without an optimizer, and forget its calls, or those up to the `last` ones.

        The call ends the step.
        """
        self.tape.pause()
        try:
            with self.tape.own_work:
                self._check(None, lambda: call.lines, self._tape_or_function())
        finally:
            self.tape.clear_through(last or self.tape.calls)
            self.tape.resume()

    def _passes(self) -> list[StepCall]:
        names = (BACKWARD, GRADIENT) if self._alone else (BACKWARD,)
        return [
            each for each in self.tape.calls if each.name in names and not each.kwargs.get("create_graph")
        ]

    def _forget_finished(self) -> None:
        """Forget the calls of earlier parts of an accumulated gradient, if that is finite.

        A loss of NaN, or `PATIENCE` passes with NaN or Inf gradients and no update, are a finding.
        """
        passes = self._passes()
        if not passes:
            return
        gradients = {id(each): each.grad for call in passes for each in call.parameters}
        gradients |= {id(each): each for call in passes for each in tensors_in(call.result)}
        with self.tape.own_work:
            lost = self._has_lost()
            finite = not lost and not suspicious([each for each in gradients.values() if each is not None])
            # The ranks must run the same calls again.
            parameters = [each for call in passes for each in call.parameters]
            levels = levels_of_ranks(parameters, 2 * lost + (not finite)).values()
            finite, lost = finite and not levels, lost or max(levels, default=0) > 1
        if finite:
            self._reported = []
            if len(self._trained.optimizers) <= 1:
                self.tape.clear_through(passes)
        elif lost or len(passes) >= PATIENCE:
            self._end_pass(passes[-1])
            self._reported = [weakref.ref(each) for each in gradients.values() if each is not None]

    @not_compiled
    def _before_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """Check the gradients, or return arguments with a closure that checks its own."""
        if self._updates.repeating:
            return None
        if self._rerunning:
            if self._running is not None:
                raise UpdateReached
            drop_gradients(parameters_of(optimizer))
            return None
        if not self._trained.watches(optimizer):
            return None
        if not self._calls.here:
            self.counts.on_other_threads += 1
            if self._forked:
                Screen().note(f"process {os.getpid()} was forked from the training: it is not watched")
                self._forked = False
            return None
        if self._updating and not self._in_closure and optimizer in self._updating:
            self._abandon_update()
        self._trained.add_updated(optimizer)
        self.counts.passes = 0
        self._updating.append(optimizer)
        if len(self._updating) > 1:
            return None
        self._skipped = False
        self.tape.pause()
        self._huge = self._tripped = self._safe = False
        lines = partial(user_lines, sys._getframe(2))
        closure = closure_of(args, kwargs)
        self._set_updating()
        if callable(closure):
            with self.tape.own_work:
                self._updates.begin(optimizer)
                self._observer.update_begins(optimizer)
            checked = partial(self._checked_closure, optimizer, closure, lines)
            if "closure" in kwargs:
                return args, {**kwargs, "closure": checked}
            return (args[0], checked, *args[2:]), kwargs
        with self.tape.own_work:
            self._updates.begin(optimizer)
            # A fused optimizer leaves out the update itself, as its gradient scaler tells it to.
            bad_scale = getattr(optimizer, "found_inf", None)
            if isinstance(bad_scale, torch.Tensor) and bool(bad_scale.item()):
                self._check_skipped(optimizer, lines)
            else:
                if self._skipping:
                    self._skips_in_row.pop(optimizer, None)
                moderate = self._check(optimizer, lines, self._tape_or_function())
                self._safe = bool(moderate) and self._safe_updates.is_safe(optimizer, moderate)
                self._updates.expect(optimizer, self._number, large=self._huge)
            self._observer.update_begins(optimizer)
        if self._safe and self._watch is not None:
            self._watch.idle = self._watch.skips_safe_updates
        return None

    def _set_updating(self) -> None:
        """Report to the watch whether an optimizer runs, outside of its closure."""
        if self._watch is not None:
            self._watch.idle = False
            self._watch.updating = bool(self._updating) and not self._in_closure

    def _abandon_update(self) -> None:
        """Start anew: the last update raised, so that its end was not seen."""
        self._updating.clear()
        self._reported = []
        self._set_updating()
        self.tape.clear()
        self.tape.resume()

    @property
    def _number(self) -> int:
        """The number of the step of the last backward pass."""
        if self.counts.passes and not self._trained.awaits_update():
            return self.counts.passes + (self._calls.marked or not self._passes())
        return self.counts.steps + self._skips + (not self._skipped)

    @not_compiled
    def _after_skip(self, optimizer: torch.optim.Optimizer) -> None:
        """Count and check a step that a gradient scaler has skipped."""
        if self._rerunning or not self._calls.here or not self._trained.watches(optimizer):
            return
        self._skips += 1
        self._skipped = True
        self._trained.add_updated(optimizer)
        self.counts.passes = 0
        self.tape.pause()
        try:
            with self.tape.own_work:
                self._check_skipped(optimizer, partial(user_lines, sys._getframe(2)))
                self._observer.update_ended(optimizer)
        finally:
            self.tape.updated(optimizer, self._trained.optimizers)
            self.tape.resume()

    def _check_skipped(self, optimizer: torch.optim.Optimizer, lines: Callable[[], Lines]) -> None:
        """Check a step that a gradient scaler skips.

        The scaler is right if only gradients are Inf: the loss was scaled too much.  A loss of NaN, or
        `PATIENCE` skips in a row, are a finding.  A step function does not run again: the scaler refuses a
        second step.
        """
        self.counts.skipped_by_scaler += 1
        self._skipping = True
        self._skips_in_row[optimizer] = self._skips_in_row.get(optimizer, 0) + 1
        lost = self._has_lost()
        if self._is_sharded(optimizer):
            lost = bool(levels_of_ranks(parameters_of(optimizer), int(lost)))
        if lost or self._skips_in_row[optimizer] >= PATIENCE:
            self._check(optimizer, lines, self.tape)
        else:
            self._check_states(optimizer, self.tape)

    def _has_lost(self) -> bool:
        return any("NaN" in not_finite(each) for each in self._losses())

    @not_compiled
    def _checked_closure(
        self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any], lines: Callable[[], Lines]
    ) -> Any:
        """Evaluate a closure and check its gradients: it can run again with the same parameters.

        Gradients that were accumulated before are checked first: their passes are on the tape.
        """
        random = RandomState()
        modules = self._trained.modules_of(optimizer) if self._runs_again else ()
        with self.tape.own_work:
            if self._passes():
                self._check(optimizer, lines, self.tape)
                self.tape.clear()
            kept = self._with_other_states([*map(BufferState, modules)])
        self._in_closure = True
        self._set_updating()
        try:
            result = closure()
        finally:
            self._in_closure = False
            self._set_updating()
        again = StepFunction(closure, (), {}, random, kept, (), self.counts.steps)
        self._updates.evaluated(result)
        with self.tape.own_work:
            self._observer.losses(tensors_in(result))
            self._check(optimizer, lines, again, [*tensors_in(result)])
        return result

    def _tape_or_function(self) -> Any:
        """Return what can run again: the step function if it has made no update yet, else the tape."""
        running = self._running
        return running if running is not None and running.updates == self.counts.steps else self.tape

    def _check(
        self,
        optimizer: torch.optim.Optimizer | None,
        lines: Callable[[], Lines],
        again: Any,
        losses: Sequence[Any] = (),
    ) -> Sequence[Any]:
        """Check gradients, losses and states before an update, which is at the user's `lines()`.

        Return the gradients if all are moderate and the update may be safe, otherwise nothing.
        """
        parameters = self._parameters_of(optimizer)
        gradients = [each for each in gradients_of(parameters) if each is not None]
        losses = [*losses, *self._losses()] if losses else self._losses()
        if self._alone:
            gradients += [each for call in self._passes() for each in tensors_in(call.result)]
        moderate = optimizer is not None and self._safe_updates.have_moderate(optimizer, gradients)
        large = suspicious(losses if moderate else [*gradients, *losses])
        states = self._newly_bad()
        sharded = self._is_sharded(optimizer)
        if not (large or states or sharded):
            return gradients if moderate else ()
        self._huge = large
        with self._trained.searched_once():
            lost = [counts for each in losses if (counts := not_finite(each))] if large else []
            bad = {"loss": lost[0]} if lost else {}
            found = bool(states or lost) or any(map(not_finite, gradients))
            # The search for names reads all objects of the process: not for values that are large alone.
            named = self._trained.named(parameters) if found else []
            bad |= {
                f"{name}.grad": counts
                for name, each in named
                if large and each.grad is not None and (counts := not_finite(each.grad))
            }
            if large and self._alone and not bad:
                counted = ("gradients", next(filter(None, map(not_finite, gradients)), ""))
                bad |= [counted] if counted[1] else []
            where = LOSS if lost else GRADIENTS if bad or not states else STATES
            new = bool(bad or states)
            if new and where == GRADIENTS:
                # Those that were reported as parts of a sum are not new.
                reported = {id(reference()) for reference in self._reported}
                new = not all(id(each) in reported for each in gradients if not_finite(each))
            spoiled = self._spoiled(named)
            level = (_FOLLOWS if spoiled and where != STATES else _LOST if lost else _NEW) if new else 0
            levels = levels_of_ranks(parameters, level) if sharded else {}
            if new or levels:
                bad |= {} if new else {f"a value of rank {rank}": "NaN or Inf" for rank in levels}
                trip = self._trip(where, bad, optimizer, lines())
                trip.follows = max(levels.values(), default=level) == _FOLLOWS
                trip.communicates = sharded
                trip.received = level != _LOST and _LOST in levels.values()
                self._report(trip, states, again)
            elif bad:
                self._tripped = True
        return gradients if moderate and not large else ()

    def _is_sharded(self, optimizer: torch.optim.Optimizer | None) -> bool:
        """Return whether other ranks have shards of parameters: such a step runs again on all of them."""
        if optimizer is None:
            return bool(meshes_of(self._trained.parameters()))
        if optimizer not in self._sharded:
            self._sharded[optimizer] = bool(meshes_of(parameters_of(optimizer)))
        return self._sharded[optimizer]

    def _spoiled(self, named: Sequence[tuple[str, Any]]) -> list[str]:
        """Return the parameters that are NaN or Inf since a finding."""
        names = self._updates.spoiled
        return [name for name, each in named if (self._found_alone or name in names) and not_finite(each)]

    def _check_states(self, optimizer: torch.optim.Optimizer | None, again: Any) -> None:
        """Check states alone: buffers and the like, and what the script wrote to."""
        with self.tape.left(), self._trained.searched_once():
            states = self._newly_bad()
            if states:
                # Of the last write of the script to one of the states.
                lines = next((each.call.lines for each in states if isinstance(each, WrittenState)), ())
                self._report(self._trip(STATES, {}, optimizer, lines), states, again)

    def _newly_bad(self) -> list[ModuleState | WrittenState]:
        """Return the states that became NaN or Inf since the last check."""
        return [*self._states.newly_bad(), *self.tape.written.newly_bad()]

    def _named(
        self, states: Sequence[ModuleState | WrittenState], parameters: Sequence[Any]
    ) -> dict[str, Any]:
        """Return the tensors of states by name."""
        models = self._trained.models_of(parameters)
        named = named_states([each for each in states if isinstance(each, ModuleState)], models)
        return named | named_written([each for each in states if isinstance(each, WrittenState)], models)

    def _check_results(self, error: BaseException | None) -> None:
        """Check what the calls of a step returned that is marked, or that `error` has ended."""
        with self.tape.left(), self._trained.searched_once():
            found = (
                ({f"result of {_name_of(call)}": counts}, call.lines)
                for call in reversed(self.tape.calls)
                for each in tensors_in(call.result)
                if (counts := not_finite(each))
            )
            bad, lines = next(found, ({}, ()))
            states = self._newly_bad()
            if error is not None:
                passed = [(frame.f_code, line) for frame, line in walk_tb(error.__traceback__)][::-1]
                lines = tuple((code.co_filename, line) for code, line in passed if is_user_code(code))
            if bad or states or (error is not None and may_be_of_nan(error)):
                trip = self._trip(RESULTS if error is None else ERROR, bad, None, lines)
                trip.follows = bool(self._spoiled(self._trained.named(self._trained.parameters())))
                trip.error = "" if error is None else type(error).__name__
                self._report(trip, states, self._tape_or_function())

    def _parameters_of(self, optimizer: torch.optim.Optimizer | None) -> list[Any]:
        return self._trained.parameters() if optimizer is None else parameters_of(optimizer)

    def _trip(
        self, where: str, bad: dict[str, str], optimizer: torch.optim.Optimizer | None, lines: Lines
    ) -> GuardTrip:
        notes = rank_notes(self._parameters_of(optimizer))
        return GuardTrip(where, self._number, optimizer, bad, lines, compiler=self.tape.compiler, notes=notes)

    def _report(self, trip: GuardTrip, states: Sequence[ModuleState | WrittenState], again: Any) -> None:
        """Search the origin of what is bad in this step, and of bad `states`, and react to it."""
        optimizer, bad = trip.optimizer, trip.bad
        parameters = self._parameters_of(optimizer)
        named = self._trained.named(parameters)
        self._found_alone = self._alone
        new: set[str] = set()
        if states:
            found = self._named(states, parameters)
            bad |= {name: not_finite(each) for name, each in found.items()}
            new = found.keys() - self._updates.spoiled
            self._updates.spoiled |= new
        bad_gradients = [(name, each) for name, each in named if f"{name}.grad" in bad]
        trip.notes += bucket_notes({*self._calls.modules, *self._trained.modules}, bad_gradients)
        if not trip.follows:
            trained = self._trained.named(self._trained.parameters())
            trip.before = {
                name: counts for name, each in trained if name not in bad and (counts := not_finite(each))
            }
            if self.counts.steps:
                trip.written = self._updates.written(trip.before)
            if optimizer is not None:
                trip.moved = self._updates.moved(optimizer)
            self._name_origin(trip, parameters)
        with searching():
            if not trip.follows and self._runs_again:
                self._record_again(trip, parameters, again, states)
            try:
                skips = self._on_trip(trip)
            except BaseException:
                if self._updating:
                    self._abandon_update()
                raise
            # A state alone explains no NaN that the update makes.
            self._tripped = not skips and trip.where != STATES
            if skips:
                drop_gradients(parameters)
        if trip.intended:
            self._updates.spoiled -= new

    def _name_origin(self, trip: GuardTrip, parameters: Sequence[Any]) -> None:
        """Enter the first module or operator with NaN or Inf."""
        if self._watch is not None:
            self._watch.name_origin(trip, self._trained.module_paths(parameters))

    def _record_again(
        self,
        trip: GuardTrip,
        parameters: Sequence[Any],
        again: Any,
        states: Sequence[ModuleState | WrittenState] = (),
    ) -> None:
        """Record a second run of the step; if it communicates, all ranks with shards of them call this."""
        if not trip.communicates and meshes_of(parameters):
            trip.notes.append(_ONE_RANK)
            return
        if current_autograd_node() is not None:
            trip.notes.append("the update runs inside the backward pass, so the step cannot run again")
            return
        trained = self._trained
        running = self._running
        self._running = again if isinstance(again, StepFunction) else None
        self._rerunning = True
        try:
            models = trained.models_of(parameters)
            written = [*self.tape.written]
            replaced = []
            if isinstance(again, StepFunction):
                again = replace(again, before=[*again.before, *written])
            else:
                replaced = replaced_memory(again.calls, trained.all_parameters())
                in_step = {id(each.parameter) for each in replaced}
                named = trained.named([each for each in parameters if id(each) in in_step])
                trip.before = {key: trip.before[key] for key in trip.before.keys() - dict(named).keys()}
            with seen_by_functions():
                others = partial(self._named, [*self._states.others, *written], parameters)
                record_again(again, trip, trained, models, others, states, replaced)
        finally:
            self._running, self._rerunning = running, False

    # -- after the update ------------------------------------------------------------------

    @not_compiled
    def _after_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._rerunning or optimizer not in self._updating:
            return
        self._updating.remove(optimizer)
        if self._updating:
            return
        self._set_updating()
        try:
            with self.tape.own_work:
                self._check_update(optimizer, sys._getframe(2))
                if not self._runs_again:
                    self._states.newly_bad()  # The parameters, which were checked.
                self._observer.update_ended(optimizer)
        finally:
            self.counts.steps += 1
            if self.counts.steps == _MANY_UPDATES:
                guard_kernels.LIBRARY.compile_later()
            self._reported = []
            self._calls.stop_learning()
            self.tape.updated(optimizer, self._trained.optimizers)
            self.tape.resume()

    def _check_update(self, optimizer: torch.optim.Optimizer, frame: FrameType) -> None:
        """Check the parameters after an update, and the moments where squares of gradients overflow."""
        if self._safe:
            self._safe_updates.updated(optimizer)
            return
        updates = self._updates
        new = updates.newly_bad(optimizer, moments=self._huge)
        if not new or self._tripped:
            return
        with self._trained.searched_once():
            trip = updates.trip(optimizer, self._number, new, user_lines(frame))
            trip.notes += memory_notes(self.tape.calls, self._trained.named(parameters_of(optimizer)))
            if self._watch is not None and self._watch.checks_updates:
                self._name_origin(trip, self._trained.parameters())
            if trip.recorded is None:
                with seen_by_functions():
                    updates.record_again(trip, optimizer)
            if self._on_trip(trip):
                updates.undo(optimizer, new)

    def _losses(self) -> list[Any]:
        return [loss for call in self._passes() for loss in _losses_of(call)]


def _losses_of(call: StepCall) -> Sequence[Any]:
    """Return the tensors from which one backward pass started."""
    tensors = call.args[0] if call.args else call.kwargs.get("tensors", call.kwargs.get("outputs"))
    return (tensors,) if isinstance(tensors, torch.Tensor) else [*tensors_in(tensors)]


def _name_of(call: StepCall) -> str:
    """Return the class of a module, or the name of a function or operator."""
    function: Any = call.function
    kind = type(function) if isinstance(function, torch.nn.Module) else function
    return getattr(kind, "__name__", str(kind))


_SUSPICIOUS = re.compile(
    r"\bnan\b|\binf\b|finite|invalid value|converge|singular|positive.definite|between 0 and 1|probabilit",
    re.IGNORECASE,
)
"""Words of messages for which NaN may be the reason."""


def may_be_of_nan(error: BaseException) -> bool:
    """Return whether NaN or Inf may have raised an error: by its message, or the variables of its frames."""
    return bool(_SUSPICIOUS.search(str(error))) or any(
        isinstance(value, torch.Tensor) and not_finite(value)
        for frame, _ in walk_tb(error.__traceback__)
        for value in _values(frame)
    )


def _values(frame: FrameType) -> list[Any]:
    variables = frame.f_locals
    values = [*variables.values()]
    if type(variables) is dict and frame.f_code.co_flags & CO_OPTIMIZED:
        # A copy, which a frame that still runs would keep, and with it the error and the tensors of the step.
        variables.clear()
    return values
