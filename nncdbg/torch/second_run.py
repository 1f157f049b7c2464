"""Run a step of the user again under the recorder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from nncdbg.torch.finiteness import not_finite, suspicious
from nncdbg.torch.module_states import ModuleState
from nncdbg.torch.recorded_step import RecordedStep
from nncdbg.torch.replaced_memory import ReplacedMemory
from nncdbg.torch.source_lines import Lines, call_again
from nncdbg.torch.step_recording import recording_of
from nncdbg.torch.step_state import KeptState, RandomState, rerun_from
from nncdbg.torch.tape import FORGOTTEN, Tape
from nncdbg.torch.tape_rerun import rerun_calls
from nncdbg.torch.written_states import WrittenState

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
    parameters: Sequence[Any],
    models: Mapping[str, torch.nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    states: Callable[[], Mapping[str, Any]],
    bad: Sequence[ModuleState | WrittenState],
    lines: Lines,
    notes: list[str],
    replaced: Sequence[ReplacedMemory] = (),
    *,
    failed: bool = False,
) -> RecordedStep | None:
    """Record a second run of a step, up to its update; everything is as before afterwards.

    `states` are those of `recording_of`, and `bad` are states with NaN or Inf.  `lines` are the user's lines
    around the step, which `failed` if an exception ended it.  What could not run again is appended to
    `notes`; None if nothing ran.  `replaced` are parameters whose memory the calls of a tape made.
    """
    again: Callable[[], Any]
    state: AbstractContextManager[None]
    if isinstance(step, StepFunction):
        state = rerun_from(step.random, step.before, parameters, step.zeroed)
        again = partial(call_again, step.function, step.args, step.kwargs, lines)
    else:
        if step.start is None or not step.calls:
            notes.append(
                "the step has too many operators outside of modules to run again"
                if step.overflowed
                else "the step cannot run again: no part of it was seen"
            )
            return None
        state = rerun_from(step.start, [*step.kept.values(), *step.written, *replaced], parameters)
        gradients = [(each, each.grad) for each in parameters if each.grad is not None]
        again = partial(rerun_calls, step.calls, notes, gradients, replaced)
    if isinstance(step, Tape) and step.has_forgotten:
        notes.append(FORGOTTEN)
    ran_eagerly = isinstance(step, Tape) and step.called_compiled
    recorded = None
    try:
        with state:
            try:
                with recording_of(models, optimizers, states, failed=failed) as recorded:
                    again()
            except UpdateReached:
                pass
            if recorded is not None:
                recorded.bad_gradients = _has_bad_gradients(parameters)
                recorded.same_states = all(each.is_bad() for each in bad)
    except (Exception, SystemExit) as error:  # noqa: BLE001  code of the user, which may not be able to run twice
        if not failed:
            notes.append(f"the second run of the step ended early: {type(error).__name__}: {error}")
    if recorded is not None and recorded.failure is not None:
        notes.append(recorded.failure.message)
        return None
    if ran_eagerly and recorded is not None and not recorded.notes:
        notes.append(_EAGER)
    return recorded


def _has_bad_gradients(parameters: Sequence[Any]) -> bool | None:
    """Return whether a gradient has NaN or Inf; None without gradients."""
    gradients = [each.grad for each in parameters if each.grad is not None]
    return (suspicious(gradients) and any(map(not_finite, gradients))) if gradients else None
