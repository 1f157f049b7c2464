"""`nncdbg.torch.step`: mark a function as a whole training step, which the active guard can run again."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from nncdbg.torch.guard import Guard

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

ACTIVE: list[Guard] = []
"""The guard that is entered, if any."""


def step(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Mark a function as one whole training step: under a watch, it runs again when a NaN appears.

    Its batch must be its arguments: an iterator gives the second run another batch.
    """

    @functools.wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if not ACTIVE:
            return function(*args, **kwargs)
        result: Result = ACTIVE[-1].run_step(function, args, kwargs)
        return result

    return run


def _leave_process() -> None:
    for guard in ACTIVE:
        guard.leave_process()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_process)
