"""`nncdbg.torch.track`: enter a value of the current step in the journal."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nncdbg.engine.errors import UsageError
from nncdbg.torch.journal.active_recreation import RECREATIONS

if TYPE_CHECKING:
    from nncdbg.torch.journal.flight_recorder import FlightRecorder

ACTIVE: list[FlightRecorder] = []
"""The flight recorder that records now, if any."""

PARTS = ("train", "test")


def track(name: str, value: Any | Callable[[], Any], *, part: str = "train", weight: float = 1) -> None:
    """Track a value of the current step under a name, in the journal of the active flight recorder.

    `value` is a number, a tensor with one element, or a function that returns one of them, called at once.
    A tensor stays on its device, and is read there after some steps.  Values of the same name in one step are
    averaged, with `weight` as the number of samples of each.  `part` is "train" or "test".  The current step
    is the last one that began: after its update, until the next forward pass, it is still the current one.

    Raises UsageError without an active flight recorder, before its first step, and for values of other kinds.
    """
    if part not in PARTS:
        raise UsageError(f"there is no part {part!r}: use train or test")
    if not weight > 0:
        raise UsageError(f"the weight of {name} must be positive, not {weight}")
    if RECREATIONS:
        # A function may draw random numbers, so it runs as in the run that is re-created.
        if callable(value) and not hasattr(value, "__array__"):
            value()
        return
    if not ACTIVE:
        raise UsageError(
            f"{name} cannot be tracked: no flight recorder is active in this process",
            hint='use it within `with nncdbg.torch.flight_recorder(model, optimizer, "run.db"):`',
        )
    ACTIVE[-1].track(name, value, part, weight)


def _leave_process() -> None:
    for recorder in ACTIVE:
        recorder.leave_process()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_process)
