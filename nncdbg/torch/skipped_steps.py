"""Steps that a `GradScaler` skips: the hooks of the optimizer do not run then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from nncdbg.torch.warning_places import warning_at_caller


def on_skipped_step(skipped: Callable[[Any], None]) -> Callable[[], None]:
    """Call `skipped` with the optimizer when a `GradScaler` ends its `step` without a step of an optimizer.

    Return a function that ends this.
    """
    scaler = torch.amp.GradScaler
    original = scaler.step
    begun = 0

    def count(*_: Any) -> None:
        nonlocal begun
        begun += 1

    @warning_at_caller
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = begun
        result = original(self, optimizer, *args, **kwargs)
        if begun == before:
            skipped(optimizer)
        return result

    hook = register_optimizer_step_pre_hook(count)
    scaler.step = step

    def restore() -> None:
        scaler.step = original
        hook.remove()

    return restore
