"""`nncdbg.torch.step`: mark a function or a block as a whole training step for the active guard."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from nncdbg.torch.hooks import leave_forks

if TYPE_CHECKING:
    from nncdbg.torch.guard import Guard

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

ACTIVE: list[Guard] = []
"""The guard that is entered, if any."""


@overload
def step() -> AbstractContextManager[None]: ...


@overload
def step(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]: ...


def step(function: Callable[..., Any] | None = None) -> Any:
    """Mark a function, or a block, as one whole training step.

    A function runs again under a watch when a NaN appears.  Its batch must be its arguments: an iterator
    gives the second run another batch.

    Without a function, ``with nncdbg.torch.step():`` marks a step without an optimizer: at the end of the
    block, a watch checks what its modules and operators returned, also without gradients.
    """
    if function is None:
        return ACTIVE[-1].marked_step() if ACTIVE else nullcontext()

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return ACTIVE[-1].run_step(function, args, kwargs) if ACTIVE else function(*args, **kwargs)

    return run


leave_forks(ACTIVE)
