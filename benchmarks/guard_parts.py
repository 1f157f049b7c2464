"""The processor time that each part of a guard, or of the tier hooks, takes inside of a training step.

In a loop on its own a part takes a fraction of it: in a step, its code and data are not in the caches.  Each
step leaves out a random half of the parts; a linear fit over many steps gives the time of each part.

    python benchmarks/guard_parts.py cnn_wide resnet_wide
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from time import thread_time_ns
from typing import Any, TypeAlias
from unittest.mock import patch

import numpy as np
import torch

from nncdbg import stats
from nncdbg.torch import watch
from nncdbg.torch.guard import Guard
from nncdbg.torch.module_watch import ModuleWatch
from nncdbg.torch.safe_updates import SafeUpdates
from nncdbg.torch.step_calls import StepCalls
from nncdbg.torch.step_function import ACTIVE
from nncdbg.torch.step_state import KeptBuffers
from nncdbg.torch.tape import Tape

STEPS = 2000
"""How many steps are measured."""

SETTLING = 100
"""Steps before, in which Python adapts its code to functions that the guard replaces."""

NEIGHBOURS = 25
"""Steps before and after one whose median is taken away: other programs slow down some seconds."""


def _nothing(*_: Any) -> None:
    """Replace a part that is left out."""


def _original(_: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return original(*args, **kwargs)


Functions: TypeAlias = "tuple[tuple[Any, str, Callable[..., Any]], ...]"
"""Owner and name of each function of a part, and its replacement."""

PARTS: dict[str, Functions] = {
    "check of gradients": (
        (sys.modules[Guard.__module__], "suspicious", lambda tensors: False),
        (SafeUpdates, "have_moderate", lambda *_: False),
    ),
    "check of parameters": ((Guard, "_check_update", _nothing),),
    "copy of buffers": ((KeptBuffers, "of", _nothing),),
    "random states": (
        (sys.modules[Tape.__module__], "RandomState", object),
        (sys.modules[StepCalls.__module__], "RandomState", object),
    ),
    "entering and leaving the mode": ((Tape, "_enter", _nothing), (Tape, "_leave", _nothing)),
    "source lines": ((sys.modules[StepCalls.__module__], "user_lines", lambda frame: ()),),
    "gradients after a backward pass": ((Guard, "_after_backward", _nothing),),
}
"""The parts that can be left out while the others run."""

FRAME: dict[str, Functions] = {
    "the rest around an update": ((Guard, "_before_update", _nothing), (Guard, "_after_update", _nothing)),
    "the rest around a module": (
        (StepCalls, "_enter_module", _nothing),
        (StepCalls, "_leave_module", _nothing),
    ),
    "the rest around a backward pass": ((StepCalls, "call", _original),),
    "the rest around a loss": ((StepCalls, "call_whole", _original),),
}
"""What calls the parts; it is measured without them."""


HOOKS: dict[str, Functions] = {
    "check of outputs": ((ModuleWatch, "_check_outputs", _nothing),),
    "check of their gradients": ((ModuleWatch, "_check_gradient", _nothing),),
}
"""What the tier hooks adds, besides the slower call of a module with hooks."""


@contextmanager
def _switched(parts: dict[str, Functions]) -> Iterator[dict[str, bool]]:
    """Yield whether each part runs; the caller changes it."""
    on = dict.fromkeys(parts, True)

    def switch(
        name: str, original: Callable[..., Any], replacement: Callable[..., Any]
    ) -> Callable[..., Any]:
        # A hook of another module than nncdbg's would be one of the user, whose updates are not safe.
        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return original(*args, **kwargs) if on[name] else replacement(*args, **kwargs)

        return call

    with ExitStack() as patches:
        for name, functions in parts.items():
            for owner, attribute, replacement in functions:
                original = getattr(owner, attribute)
                patches.enter_context(patch.object(owner, attribute, switch(name, original, replacement)))
        yield on


Fit: TypeAlias = "list[tuple[str, float, float]]"
"""Each part with its time in a step and the standard error, in microseconds."""


def measured(step: Any, measure: list[str], *, without: Iterable[str] = (), tier: str = "guard") -> Fit:
    """Return the parts of `measure`, in steps without the parts of `without`."""
    training, choose = step.build(), random.Random(1)
    rows, times = [], []
    with _switched(PARTS | FRAME | HOOKS) as on, watch(training.models, training.optimizers, tier=tier):
        tape = ACTIVE[-1]._tape
        leave, enter = tape._leave, tape._enter
        for _ in range(SETTLING):
            training.run()
        for _ in range(STEPS):
            on["entering and leaving the mode"] = True
            leave()
            on.update({name: choose.random() < 0.5 for name in measure}, **dict.fromkeys(without, False))
            enter()
            training.run()
            before = thread_time_ns()
            training.run()
            times.append((thread_time_ns() - before) / 1e3)
            rows.append([1.0, *(float(on[name]) for name in measure)])
    return _fitted(measure, np.array(rows), np.array(times))


def _fitted(names: list[str], rows: Any, times: Any) -> Fit:
    """Return a linear fit without steps that took unusually long."""
    local = [np.median(times[max(0, at - NEIGHBOURS) : at + NEIGHBOURS + 1]) for at in range(len(times))]
    times = times - np.array(local)
    usual = np.abs(times) < 4 * np.median(np.abs(times))
    rows, times = rows[usual], times[usual]
    found, *_ = np.linalg.lstsq(rows, times, rcond=None)
    errors = np.sqrt(np.diag(np.linalg.inv(rows.T @ rows)) * np.var(times - rows @ found))
    return [*zip(names, found[1:].tolist(), errors[1:].tolist(), strict=True)]


def main(names: list[str]) -> None:
    from tests.torch.steps import STEPS as TRAININGS

    torch.set_num_threads(1)
    stats.prepare(wait=True)
    for step in TRAININGS:
        if step.name in names:
            training = step.build()
            for _ in range(SETTLING):
                training.run()
            eager = statistics.median(_seconds(training) for _ in range(50))
            print(f"{step.name}: eager {eager * 1e3:.2f} ms")
            guard = measured(step, [*PARTS]) + measured(step, [*FRAME], without=PARTS)
            _show("guard", guard)
            _show("hooks, besides", measured(step, [*HOOKS], tier="hooks"))


def _show(title: str, parts: Fit) -> None:
    print(f"  {title}: {sum(time for _, time, _ in parts):.0f} us")
    for name, time, error in parts:
        print(f"    {name:34} {time:6.0f} us +- {error:.0f}")


def _seconds(training: Any) -> float:
    before = thread_time_ns()
    training.run()
    return (thread_time_ns() - before) / 1e9


if __name__ == "__main__":
    main(sys.argv[1:] or ["cnn_wide", "resnet_wide"])
