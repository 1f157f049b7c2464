"""Record each step of a training as it runs, so that a step with NaN or Inf need not run again."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from nncdbg.errors import NncdbgError
from nncdbg.presentation.screen import Screen
from nncdbg.torch.live.debugger import LiveDebugger
from nncdbg.torch.live.training import LiveTraining
from nncdbg.torch.module_states import ModuleStates, named_states
from nncdbg.torch.named_models import Trained
from nncdbg.torch.guard_findings import ERROR, RESULTS, GuardTrip

_MOST_STEPS = 16
"""The most updates in one recording, if one of several optimizers makes none, or passes without one."""


class RecordingWatch:
    """Records the operators of this thread while it is entered and `active`.

    A recording ends with the update after which the guard forgets the calls of the step.
    """

    checks_updates = True
    skips_safe_updates = False

    def __init__(self, trained: Trained, states: ModuleStates) -> None:
        self._trained, self._states = trained, states
        self._forgets = False
        """Whether the guard forgot the calls of the step, since the last update began."""
        self._updating = False
        self.idle = False
        self._steps = 0
        """The number of updates in this recording; in a training without an optimizer, of finite passes."""
        self._training = LiveTraining(
            _refuse_stop,
            Screen().note,
            history=True,
            model=trained.models,
            optimizer=trained.optimizers,
            ends=self._ends,
            compiles=True,
        )
        self._entered = ExitStack()

    def __enter__(self) -> RecordingWatch:
        self._entered.enter_context(self._training)
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()

    @property
    def active(self) -> bool:
        """Whether operators are recorded: those of nncdbg itself are not."""
        return not self._training.mode.suspended

    @active.setter
    def active(self, value: bool) -> None:
        self._training.mode.suspended = not value

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

    def _ends(self) -> bool:
        """Return whether the recording ends with the update that has just ended."""
        self._steps += 1
        ends = self._forgets or self._steps >= _MOST_STEPS
        if ends:
            self._forgets, self._steps = False, 0
        return ends

    def pass_ended(self) -> None:
        """Begin a new recording from time to time, as no update ends one: this pass has no NaN and no Inf."""
        self._steps += self._training.mode.recorder is not None
        if self._steps >= _MOST_STEPS:
            self._steps = 0
            self._training.begin_anew()

    def name_origin(self, trip: GuardTrip, paths: Mapping[int, str]) -> None:
        """Enter the step so far in a trip, or a note if it was not recorded."""
        try:
            models = self._trained.models_of(self._trained.parameters())
            states = named_states(self._states.others, models)
            trip.recorded = self._training.step_so_far(states, failed=trip.where in (RESULTS, ERROR))
        except NncdbgError as error:
            trip.notes.append(error.message)


def _refuse_stop(debugger: LiveDebugger) -> None:
    Screen().note(f"{debugger.live.detail} does not stop under `watch`: use `nncdbg debug`")
