"""The time that each function of a guard takes inside of training steps, without those that it calls.

In a loop on its own a function takes a fraction of it: in a step, its code and data are not in the caches.
Timers around the functions take about 0.5 us each.  Calls that torch makes for the guard, such as the slower
call of a module with hooks, are not in the figures.

    NNCDBG_TORCH_KERNELS=now python benchmarks/guard_parts.py cnn_wide resnet_wide
    NNCDBG_TORCH_KERNELS=off python benchmarks/guard_parts.py cnn_wide resnet_wide
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from time import perf_counter_ns
from typing import Any
from unittest.mock import patch

import torch

from nncdbg import stats
from nncdbg.torch import watch
from nncdbg.torch.guard import Guard
from nncdbg.torch.named_models import Trained
from nncdbg.torch.step_calls import StepCalls
from nncdbg.torch.step_state import KeptBuffers, RandomState
from nncdbg.torch.tape import Tape
from nncdbg.torch.updates import SafeUpdates, UpdateCheck

STEPS = 300
"""How many steps are measured."""

SETTLING = 100
"""Steps before, in which Python adapts its code to functions that the guard replaces."""

FUNCTIONS: tuple[tuple[str, Any, str], ...] = (
    ("before a module", StepCalls, "_enter_module"),
    ("after a module", StepCalls, "_leave_module"),
    ("start of a step", Guard, "_before_module"),
    ("after a backward pass", Guard, "_after_backward"),
    ("before an update", Guard, "_before_update"),
    ("check before an update", Guard, "_check"),
    ("reading of gradients and losses", sys.modules[Guard.__module__], "suspicious"),
    ("bounds of gradients", SafeUpdates, "have_moderate"),
    ("proof of a safe update", SafeUpdates, "is_safe"),
    ("after an update", Guard, "_after_update"),
    ("end of a safe update", SafeUpdates, "updated"),
    ("check after an update", Guard, "_check_update"),
    ("reading of parameters", sys.modules[UpdateCheck.__module__], "suspicious"),
    ("end of the tape", Tape, "updated"),
    ("list of parameters", Trained, "parameters"),
    ("copy of buffers", KeptBuffers, "of"),
    ("random states", RandomState, "__init__"),
    ("source lines", sys.modules[StepCalls.__module__], "user_lines"),
)
"""What is measured: its name here, owner and name."""


@contextmanager
def _timed() -> Iterator[dict[str, float]]:
    """Yield the microseconds of each function, which the caller clears; they grow in the block."""
    spent: dict[str, float] = {}
    inner = [0]
    """Nanoseconds of the functions that each function on the stack has called."""

    def timed(label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        # A hook of another module than nncdbg's would be one of the user, whose updates are not safe.
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            inner.append(0)
            began = perf_counter_ns()
            try:
                return function(*args, **kwargs)
            finally:
                took = perf_counter_ns() - began
                spent[label] = spent.get(label, 0.0) + (took - inner.pop()) / 1e3
                inner[-1] += took

        return call

    with ExitStack() as patches:
        for label, owner, name in FUNCTIONS:
            patches.enter_context(patch.object(owner, name, timed(label, getattr(owner, name))))
        yield spent


def measured(step: Any) -> dict[str, float]:
    """Return the median microseconds of each function in a step."""
    training = step.build()
    steps = []
    with _timed() as spent, watch(training.models, training.optimizers):
        for _ in range(SETTLING):
            training.run()
        for _ in range(STEPS):
            spent.clear()
            training.run()
            steps.append(dict(spent))
    return {label: statistics.median(each.get(label, 0.0) for each in steps) for label, _, _ in FUNCTIONS}


def main(names: list[str]) -> None:
    from tests.torch.steps import STEPS as TRAININGS

    torch.set_num_threads(1)
    stats.prepare(wait=True)
    for step in TRAININGS:
        if step.name in names:
            found = measured(step)
            print(f"{step.name}: {sum(found.values()):.0f} us")
            for label, time in sorted(found.items(), key=lambda each: -each[1]):
                if time:
                    print(f"  {label:34} {time:6.1f} us")


if __name__ == "__main__":
    main(sys.argv[1:] or ["cnn_wide", "resnet_wide"])
