"""A training that runs under the debugger: its steps, its stops, and the program of the present step."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import Any, Self

import torch

from nncdbg.engine.ops.aten.internals import (
    compiles_body,
    compiling_nothing,
    innermost_mode,
    traced_undispatched,
    unseen,
    without_dispatch,
)
from nncdbg.errors import NncdbgError, RunError, UsageError
from nncdbg.presentation.screen import Screen
from nncdbg.stats import prepare
from nncdbg.target.source import LineGoal
from nncdbg.torch.guard_findings import ERROR, RESULTS, GuardTrip
from nncdbg.torch.hooks import leave_forks, on_compiled_call, on_module_calls, on_updates
from nncdbg.torch.live.breakpoints import KINDS, LiveBreakpoint
from nncdbg.torch.live.debugger import FINISH, NEXT, STEP, LiveDebugger
from nncdbg.torch.live.lines import reaches
from nncdbg.torch.live.mode import Goal, LiveMode, LiveStop
from nncdbg.torch.live.operators import Operator
from nncdbg.torch.module_states import ModuleStates, named_states
from nncdbg.torch.named_models import (
    Models,
    Optimizers,
    Trained,
    listed_optimizers,
    live_objects,
    models_of,
    named_models,
    own_tensors,
    parameters_of,
    submodules,
    tensors_by_name,
)
from nncdbg.torch.recorded_step import RecordedStep
from nncdbg.torch.recording import BACKWARD, Recorder
from nncdbg.torch.script import on_module_call
from nncdbg.torch.source_frames import NO_BACKWARD
from nncdbg.torch.source_lines import calling_modules, compiled_calls
from nncdbg.torch.step_recording import recording_with, step_so_far
from nncdbg.torch.step_state import RandomState
from nncdbg.torch.tape import FEW_EVALUATIONS, FORGOTTEN, MUCH_EVALUATED
from nncdbg.torch.updates import SafeUpdates

Hold = Callable[[LiveDebugger], None]
"""Shows a stop to the user, and returns when the script continues."""

_NO_PAST = "this stop has only its operator: the step is not recorded"
_HISTORY = "`nncdbg debug --history`, in Python `history=True`, records each step as it runs"
_EAGER = "torch.compile compiles nothing under the live debugger: compiled functions run eagerly"


class LiveTraining:
    """Stops the training that runs on this thread while it is entered.

    Other threads, and processes that the script forks, run without stops.

    `hold` is called at each stop, and `said` with each message of a logpoint.  With `history`, the operators
    of the present step are recorded as they run, so that a stop can step back to the start of the step;
    without it, a stop has the operator at which the script is.  `model` and `optimizer` are as for `record`;
    missing ones are found.  With `on_demand`, operators cost nothing while nothing can stop the script: what
    is set then has an effect from the next update on.
    """

    compiles = False
    """Whether functions of `torch.compile` run compiled, and a step with one is not recorded."""

    def __init__(
        self,
        hold: Hold,
        said: Callable[[str], None],
        *,
        history: bool = False,
        model: Models | None = None,
        optimizer: Optimizers | None = None,
        on_demand: bool = False,
    ) -> None:
        self.history = history
        self._ran_compiled = False
        """Whether a compiled function ran in the present step, whose operators are not seen from there on."""
        self._evaluates = False
        """Whether the history began with an evaluation, before models and optimizers were complete."""
        self._counted = 0
        """The number of events of the history whose results were counted."""
        self._evaluations = self._evaluated = 0
        """The modules without gradients before the first one with them, and the bytes that they have made."""
        self._trains = False
        """Whether a module with gradients was called in the present step."""
        self._has_forgotten = False
        """Whether the history has begun anew after modules without gradients."""
        self._on_demand = on_demand
        self._in_mode = False
        self.last_number = 0
        """The number of the latest breakpoint."""
        self.recordings = 0
        """How often a history has begun."""
        self.stops = 0
        """How often the script has stopped."""
        self.stop: LiveStop | None = None
        """Where the script is, while a stop is shown."""
        self._hold = hold
        self._said = said
        self.mode = LiveMode(self._stopped, said, self._named)
        self._models = dict(named_models(model))
        self._optimizers = [*listed_optimizers(optimizer)]
        self._finds = not self._models
        """Whether the models are those that the script has."""
        self._outdated = False
        """Whether it has others since: an optimizer that was not known has made an update."""
        self._outermost: torch.optim.Optimizer | None = None
        """The optimizer whose step runs now; another may step inside it."""
        self._safe_updates = SafeUpdates()
        self._safe = False
        """Whether the present update can make no NaN and no Inf, so that it runs without the mode."""
        self._thread: int | None = threading.get_ident()
        """The thread that is debugged; None in a forked process, where none is."""
        self._compiled = 0
        """The number of calls of compiled functions before the training."""
        self._notes: set[str] = set()
        """The notes that the user has seen."""
        self._counts_calls = False
        """Whether calls of modules are counted."""
        self._entered = ExitStack()
        self._recording = ExitStack()
        self._records_step = False
        """Whether a whole step was requested, at the end of which the script stops."""

    def __enter__(self) -> Self:
        if _ACTIVE:
            raise UsageError("the live debugger is active already", hint="call nncdbg.torch.debug once")
        entered = self._entered
        _ACTIVE.append(self)
        entered.callback(_ACTIVE.remove, self)
        prepare()
        on_updates(entered, self._before_update, self._after_update, self._end_step)
        entered.callback(on_module_call(self._before_first_module, self._thread))
        if self.history:
            entered.callback(on_module_calls(self._limit_evaluations))
        if self.history and not self.compiles:
            entered.callback(on_module_call(self._before_evaluation, self._thread, evaluation=True))
        if self.compiles:
            traced_undispatched(entered)
            entered.callback(on_compiled_call(self._before_compiled, lambda *_: None))
        else:
            # The compiler would compile the dispatch mode into each function.  A recording ends first.
            entered.enter_context(compiling_nothing())
        entered.callback(self._recording.close)
        self._compiled = compiled_calls()
        if self.history and self._models:
            self._begin()
        entered.callback(self._leave_mode)
        self._update_mode()
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()
        # torch may keep the mode.
        self._models, self._optimizers, self.mode.names = {}, [], {}

    def _update_mode(self) -> None:
        """Enter the mode; on demand, leave it while no operator can stop the script.

        The user's own modes are entered and left in blocks: among them, the mode stays as it is.
        """
        needed = not (self._on_demand and self.mode.idle) and not self._ran_compiled
        if needed and not self._in_mode and (not self._on_demand or innermost_mode() is None):
            self.mode.__enter__()
            self._in_mode = True
        elif not needed and innermost_mode() is self.mode:
            self._leave_mode()

    def _leave_mode(self) -> None:
        if self._in_mode:
            self._in_mode = False
            self.mode.__exit__(None, None, None)

    def _before_compiled(self, function: Any, args: Any, kwargs: Any, frame: FrameType) -> None:
        """Leave the mode for the rest of the step: the compiler compiles nothing under one.

        It traces the bodies of higher-order operators for their gradients, and their operators run eagerly.
        """
        if not self.here or innermost_mode() is not self.mode or compiles_body(frame):
            return
        self._ran_compiled = True
        if self.mode.recorder is not None:
            self.mode.recorder.give_up(UsageError("it runs code of torch.compile", hint="use the tier guard"))
        self._leave_mode()

    # -- what stops ------------------------------------------------------------------------

    def add(self, found: LiveBreakpoint) -> None:
        """Add a breakpoint.  Raises UsageError for a module or parameter that the models do not have."""
        self.check_name(found)
        self.set_breakpoints([*self.mode.breakpoints, found])

    def set_breakpoints(self, breakpoints: Sequence[LiveBreakpoint]) -> None:
        """Stop at exactly these breakpoints."""
        self.last_number = max(self.last_number, *(each.number for each in breakpoints), 0)
        if not self._counts_calls and any(each.kind.startswith("module") for each in breakpoints):
            self._counts_calls = True
            self._entered.callback(on_module_calls(lambda module: self.mode.calls.update((id(module),))))
        self.mode.breakpoints = [*breakpoints]
        self.mode.changed()

    def catch(self, kinds: Mapping[str, Any]) -> None:
        """Stop where a NaN or Inf originates; `kinds` maps ``nan`` and ``inf`` to a condition or None.

        Raises UsageError for other kinds.
        """
        for kind in kinds:
            if kind not in KINDS:
                raise UsageError(
                    f"a running script cannot catch {kind!r}: it can catch {' and '.join(KINDS)}",
                    hint="`nncdbg record` records a step, in which all kinds can be caught",
                )
        self.mode.catches.update(kinds)
        self.mode.changed()

    def pause(self, why: str) -> None:
        """Stop at the next operator."""
        self.mode.pausing = why

    def check_name(self, found: LiveBreakpoint) -> None:
        """Raise UsageError for a module or parameter that the models do not have."""
        known = set(self.mode.names.values())
        name = found.target.removesuffix(".grad")
        if found.kind in ("module", "module backward", "parameter") and known and name not in known:
            from difflib import get_close_matches

            near = get_close_matches(name, known, 1)
            raise UsageError(
                f"no module or parameter of the models is named {name}",
                hint=f"did you mean {near[0]}?"
                if near
                else "use a name of named_modules() or named_parameters()",
            )

    def step_so_far(self, states: Mapping[str, Any] | None = None, *, failed: bool = False) -> RecordedStep:
        """Return the present step until now; the arguments are those of `step_recording.step_so_far`.

        Raises RunError if it was not recorded.
        """
        recorder = self.mode.recorder
        if recorder is None:
            raise RunError(
                "the step was not recorded: no module was called before its end",
                hint="pass the model to nncdbg.torch.watch",
            )
        step = step_so_far(recorder, self._models, self._optimizers, self._compiled, states, failed=failed)
        if self._has_forgotten:
            step._notes = (*step._notes, FORGOTTEN)
        return step

    def record_step(self) -> str:
        """Stop at the end of the present step, or without `history` of the next one, with all of it.

        Return a sentence for the user.
        """
        self._records_step = self.mode.asleep = True
        which = "this" if self.mode.recorder is not None else "the next"
        return f"recording {which} step; the script stops at its end"

    # -- steps -----------------------------------------------------------------------------

    @property
    def here(self) -> bool:
        """Whether the present thread is the one that is debugged."""
        return threading.get_ident() == self._thread

    def leave_process(self) -> None:
        """Run without stops in this forked process, such as a worker of a DataLoader."""
        self._thread, self.mode.asleep = None, True

    def _before_first_module(self) -> None:
        """Begin the first step, unless its history began with the training, whose models were known."""
        if self._evaluates:
            self._models, self._optimizers = {}, []
        if self._evaluates or self.mode.recorder is None:
            self._evaluates = False
            self.begin_anew()

    def _before_evaluation(self) -> None:
        """Begin the history with an evaluation before the first step."""
        if self.mode.recorder is None and not torch.is_grad_enabled():
            self._evaluates = True
            self.begin_anew()

    def _limit_evaluations(self, module: torch.nn.Module) -> None:
        """Begin anew among modules without gradients whose operators have made much memory.

        The memory is free again, but what is kept for each operator lies between, so that the allocator takes
        more.  What a step computes with gradients is kept.
        """
        recorder = self.mode.recorder
        if recorder is None or self._trains or not self.here:
            return
        if torch.is_grad_enabled():
            self._trains = True
            return
        made = (key for event in recorder.events[self._counted :] for key in event.results)
        # Counted again for views.
        self._evaluated += sum(math.prod(key[2]) * key[4].itemsize for key in made if key is not None)
        self._counted = len(recorder.events)
        if self._evaluated < MUCH_EVALUATED or [*calling_modules(sys._getframe(1), traced=True)]:
            return
        self._evaluations += 1
        if self._evaluations > FEW_EVALUATIONS:
            self.begin_anew()
            self._has_forgotten = True

    def begin_anew(self) -> None:
        """Begin the history of a step before the next operator."""
        self._begin()
        if self.here:
            self._update_mode()

    @unseen
    def _begin(self) -> None:
        """Find models and optimizers, and begin the history of a step."""
        if not self.here:
            return
        self._recording.close()
        self.recordings += 1
        self.mode.recorder = None
        self._counted = self._evaluations = self._evaluated = 0
        self._trains = self._has_forgotten = False
        if self._outdated:
            self._outdated, self._models, self._optimizers = False, {}, []
        if not self._models or not self._optimizers or not self.mode.names:
            self._optimizers = self._optimizers or live_objects(torch.optim.Optimizer)
            self._models = self._models or models_of(self._optimizers)
            named = *submodules(self._models), *own_tensors(self._models)
            self.mode.names = {id(each): name for name, each in named}
        self._ran_compiled = False
        if self.history or self._records_step:
            recorder = Recorder()
            recorder.outer = self.mode
            self._recording.callback(recorder.release)
            self._recording.enter_context(
                recording_with(recorder, self._models, self._optimizers, compiles=self.compiles)
            )
            self.mode.recorder = recorder

    def _before_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not self.here:
            return
        if self._outermost is None:
            self._outermost = optimizer
            self.mode.optimizing = 1
            self._safe = False
            self._update_mode()
            if self.mode.only_catches and len(args) == 1 and not kwargs:
                self._skip_update(optimizer)
        if all(each is not optimizer for each in self._optimizers):
            self._optimizers.append(optimizer)
            self._outdated = self._finds

    def _after_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._outermost is optimizer:
            self._outermost = None
            self.mode.optimizing = 0
            if self._safe:
                self._safe_updates.updated(optimizer)
            self._end_step()

    @unseen
    def _skip_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Leave the mode until an update ends that can make no NaN and no Inf."""
        gradients = [each.grad for each in parameters_of(optimizer) if each.grad is not None]
        if innermost_mode() is not self.mode:
            return
        self._leave_mode()
        safe = self._safe_updates
        self._safe = safe.have_moderate(optimizer, gradients) and safe.is_safe(optimizer, gradients)
        if not self._safe:
            self._update_mode()

    def _end_step(self, *_: Any) -> None:
        if not self.here:
            return
        if self._records_step and self.mode.recorder is not None:
            self._stop_at_end(self.mode.recorder)
        self.mode.step += 1
        if self._ends_history():
            self._begin()
        self._update_mode()

    def _ends_history(self) -> bool:
        """Return whether the history ends with the update that has just ended."""
        return True

    def _stop_at_end(self, recorder: Recorder) -> None:
        """Stop after the last operator of a step that was requested whole."""
        self._records_step = False
        if recorder.failure is not None:
            self._said(recorder.failure.message)
            return
        last = recorder.events[-1].signature
        frame = sys._getframe(2)
        operator = Operator(last, (), {}, None, frame, self.mode.step, True)
        with without_dispatch():
            self._stopped(LiveStop(operator, "pause", f"the end of step {self.mode.step}"))

    def _named(self) -> dict[str, Any]:
        """Return parameters, buffers, gradients and moments by name."""
        return tensors_by_name(self._models, self._optimizers)

    # -- stops -----------------------------------------------------------------------------

    def _stopped(self, stop: LiveStop) -> None:
        """Open the step so far, and continue as the user requests."""
        self.stops += 1
        self.stop = stop
        self.mode.asleep = True
        random = RandomState()
        try:
            try:
                debugger = LiveDebugger(self._so_far(stop.operator), stop, self.mode)
            except NncdbgError as error:
                self._said(f"no stop at {stop.operator.signature.name}: {error.message}")
                return
            self._say_limits(debugger)
            self._hold(debugger)
            self._follow(debugger.wanted, stop.operator)
        finally:
            random.restore()
            self.stop = None
            self.mode.asleep = self._records_step

    def _follow(self, wanted: str | LineGoal, operator: Operator) -> None:
        """Let the script run on from an operator to what the user has chosen."""
        mode = self.mode
        if not isinstance(wanted, LineGoal):
            mode.goal = _goal(wanted, operator)
        needed = mode.lines is not None or isinstance(wanted, LineGoal)
        if needed and not (mode.lines is not None and mode.lines.stack):
            # The lines where the script is have begun already.
            mode.follow_lines().at(operator)
        if isinstance(wanted, LineGoal):
            mode.line_goal = reaches(wanted, mode.follow_lines())
        elif all(each.kind != "source" or not each.enabled for each in mode.breakpoints):
            mode.leave_lines(operator.frame)

    def _say_limits(self, debugger: LiveDebugger) -> None:
        """Say what a stop cannot show; the same note once."""
        recorder = self.mode.recorder
        notes = list(debugger.recorded.notes)
        if recorder is None:
            debugger.control.no_past = _NO_PAST, _HISTORY
            notes.insert(0, f"{_NO_PAST}; {_HISTORY}")
        elif recorder.failure is not None:
            debugger.control.no_past = recorder.failure.message, recorder.failure.hint or ""
            notes.insert(0, recorder.failure.message)
        else:
            start = f"this is the start of step {self.mode.step}: earlier steps are not recorded"
            start = FORGOTTEN if self._has_forgotten else start
            debugger.control.no_past = start, "step forward first"
        if compiled_calls() > self._compiled:
            notes.append(_EAGER)
        for note in notes:
            if note not in self._notes:
                self._notes.add(note)
                self._said(note)

    def _so_far(self, operator: Operator) -> RecordedStep:
        recorder = self.mode.recorder
        if recorder is None or recorder.failure is not None:
            recorder = Recorder()
            recorder.optimizing = int(operator.optimizing)
            for name in map(self.mode.names.get, map(id, reversed(operator.modules))):
                recorder.enter_module(name or "")
            for name, tensor in self._named().items():
                recorder.label(tensor, name)
            visit = None
            if operator.frame is not None:
                recorder.source.begin(operator.frame)
                if self.mode.lines is not None and self.mode.lines.stack:
                    recorder.source.callers = self.mode.lines.begun
                visit = recorder.source.at(operator.frame, 0, NO_BACKWARD)
                recorder.source.close(operator.frame)
            recorder.add_finished(
                operator.signature.overload, operator.args, operator.kwargs, operator.result, operator.lines
            )
            recorder.events[-1].visit = visit
        # `_say_limits` reports compiled functions.
        return step_so_far(recorder, self._models, self._optimizers, compiled_calls())


def _goal(wanted: str, start: Operator) -> Goal | None:
    """Return where a step from the operator `start` ends; None to continue."""
    depth, module = len(start.modules), start.modules[0] if start.modules else None
    if wanted == STEP:
        return lambda operator: True
    if wanted == NEXT:
        return lambda operator: operator.phase != start.phase or len(operator.modules) <= depth
    if wanted != FINISH:
        return None
    if start.phase == BACKWARD:
        return lambda operator: operator.sequence != start.sequence
    if module is None:
        return lambda operator: operator.phase != start.phase
    return lambda operator: (
        operator.phase != start.phase or all(each is not module for each in operator.modules)
    )


_ACTIVE: list[LiveTraining] = []
leave_forks(_ACTIVE)


def active() -> LiveTraining | None:
    """Return the training that runs under the debugger in this process; None if none does."""
    return _ACTIVE[-1] if _ACTIVE else None


# -- recordings of a watch -----------------------------------------------------------------

_MOST_STEPS = 16
"""The most updates in one recording, if one of several optimizers makes none, or passes without one."""


class RecordingWatch(LiveTraining):
    """Records the operators of this thread while it is entered and `active`.

    A recording ends with the update after which the guard forgets the calls of the step.
    """

    compiles = True
    checks_updates = True
    skips_safe_updates = False

    def __init__(self, trained: Trained, states: ModuleStates) -> None:
        super().__init__(
            lambda stop: Screen().note(f"{stop.live.detail} does not stop under `watch`: use `nncdbg debug`"),
            Screen().note,
            history=True,
            model=trained.models,
            optimizer=trained.optimizers,
        )
        self._trained, self._states = trained, states
        self._forgets = False
        """Whether the guard forgot the calls of the step, since the last update began."""
        self._updating = False
        self.idle = False
        self._steps = 0
        """The number of updates in this recording; in a training without an optimizer, of finite passes."""

    @property
    def active(self) -> bool:
        """Whether operators are recorded: those of nncdbg itself are not."""
        return not self.mode.suspended

    @active.setter
    def active(self, value: bool) -> None:
        self.mode.suspended = not value

    @property
    def updating(self) -> bool:
        """Whether an optimizer runs."""
        return self._updating

    @updating.setter
    def updating(self, value: bool) -> None:
        self._updating = value
        self._forgets &= not value

    def forget(self) -> None:
        """End the recording with the present update; parts of an accumulated gradient are in one program."""
        self._forgets = True

    def _ends_history(self) -> bool:
        self._steps += 1
        ends = self._forgets or self._steps >= _MOST_STEPS
        if ends:
            self._forgets, self._steps = False, 0
        return ends

    def pass_ended(self) -> None:
        """Begin a new recording from time to time, as no update ends one: this pass has no NaN and no Inf."""
        self._steps += self.mode.recorder is not None
        if self._steps >= _MOST_STEPS:
            self._steps = 0
            self.begin_anew()

    def name_origin(self, trip: GuardTrip, paths: Mapping[int, str]) -> None:
        """Enter the step so far in a trip, or a note if it was not recorded."""
        try:
            models = self._trained.models_of(self._trained.parameters())
            states = named_states(self._states.others, models)
            trip.recorded = self.step_so_far(states, failed=trip.where in (RESULTS, ERROR))
        except NncdbgError as error:
            trip.notes.append(error.message)
