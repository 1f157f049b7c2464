"""The least that a guard in Python does: an empty dispatch mode, and one pass over gradients and parameters.

The mode is on where the guard needs it to run the step again: between modules, backward passes and updates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from nncdbg.engine.ops.aten.internals import DispatchMode
from nncdbg.torch.finiteness import suspicious


class _EmptyMode(DispatchMode):
    """Sees each operator and does nothing with it."""

    def __init__(self) -> None:
        super().__init__()
        self._entered = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return func(*args, **(kwargs or {}))

    def enter(self, *_: Any) -> None:
        if not self._entered:
            self.__enter__()
            self._entered = True

    def leave(self, *_: Any) -> None:
        if self._entered:
            self.__exit__(None, None, None)
            self._entered = False


@contextmanager
def bare_guard(training: Any) -> Iterator[None]:
    """Check gradients before each update and parameters after it; see operators outside of modules."""
    mode = _EmptyMode()
    parameters = [each for module in training.models for each in module.parameters()]

    def before_update(*_: Any) -> None:
        mode.leave()
        suspicious([each.grad for each in parameters if each.grad is not None])

    def after_update(*_: Any) -> None:
        suspicious(parameters)

    original = torch.autograd.backward

    def backward(*args: Any, **kwargs: Any) -> None:
        mode.leave()
        original(*args, **kwargs)
        mode.enter()

    with ExitStack() as entered:
        entered.callback(register_optimizer_step_pre_hook(before_update).remove)
        entered.callback(register_optimizer_step_post_hook(after_update).remove)
        for module in training.models:
            entered.callback(module.register_forward_pre_hook(mode.leave).remove)
            entered.callback(module.register_forward_hook(mode.enter).remove)
        torch.autograd.backward = backward
        entered.callback(setattr, torch.autograd, "backward", original)
        entered.callback(mode.leave)
        yield
