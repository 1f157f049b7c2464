"""Record one training step of a script that is run unchanged.

Step N ends with the Nth call of `step` of an optimizer, or of a `GradScaler` that skips it, and begins when
the call before it has ended.  Step 1 begins with the first call of a module with gradients enabled.
In a script without an optimizer, a step ends after a backward pass, before the next call of a module.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.nn.utils.parametrize import ParametrizationList
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from nncdbg.engine.ops.aten.internals import compiling_nothing, module_call
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.text.counting import counted
from nncdbg.torch.hooks import on_backward, on_compiled_call, on_module_calls, on_skipped_step
from nncdbg.torch.named_models import live_objects, models_of
from nncdbg.torch.recorded_step import RecordedStep
from nncdbg.torch.script import run_to_end
from nncdbg.torch.step_recording import record


@dataclass(frozen=True, slots=True)
class ScriptStep:
    """A recorded step of a script."""

    step: RecordedStep
    title: str
    notes: tuple[str, ...] = ()
    failure: NncdbgError | None = None
    """Why the script ended within the step; None if the step is complete."""


class _StepRecorded(BaseException):
    """Ends the script when the step has been recorded."""


def record_script(
    script: str, run: Callable[[], None], recorder: ScriptRecorder, use: Callable[[ScriptStep], int]
) -> int:
    """Run a script until the end of the training step of a recorder, and return `use(step)`.

    `script` is the path of the file or the name of the module that `run` runs.  If the script fails in the
    step, the step ends there; the traceback of the script is printed.  If it ends the process by `os._exit`,
    so does the step, and the process ends with the code that `use` returns.

    Raises LoadError if the script cannot be compiled, RunError if it fails or is interrupted before the step,
    and UsageError if it ends before the step.
    """
    thread = threading.get_ident()

    def recording() -> None:
        with recorder:
            run()

    def at_exit(failure: NncdbgError | None) -> int:
        if threading.get_ident() != thread:  # The step still runs.
            raise failure or recorder.missing(script)
        recorder.__exit__()
        return use(_recorded(script, recorder, failure))

    failure: NncdbgError | None = None
    with suppress(_StepRecorded):
        failure = run_to_end(script, recording, at_exit, lambda: recorder.place)
    return use(_recorded(script, recorder, failure))


def _recorded(script: str, recorder: ScriptRecorder, failure: NncdbgError | None) -> ScriptStep:
    """Return the step of a script that has ended.  Raises its failure or UsageError without a step."""
    title = recorder.title(os.path.basename(script))
    step = recorder.step
    if failure is None and not recorder.complete:
        raise recorder.missing(script)
    if step is None:
        raise failure or recorder.missing(script)
    if failure is not None:
        return ScriptStep(step, title, (f"the step is not complete: {failure.message}",), failure)
    return ScriptStep(step, title, recorder.notes)


class ScriptRecorder:
    """Records a step between its first module call, or the end of the step before, and its end.

    It is the step `number` of those that are counted, from 1.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.shown = number
        """The number of the step in messages."""
        self.ended = 0
        """The number of optimizer steps that have ended or were skipped."""
        self.step: RecordedStep | None = None
        self.complete = False
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._outermost: torch.optim.Optimizer | None = None
        """The optimizer whose step runs now; another may step inside it."""
        self._hooks = ExitStack()
        self._recording = ExitStack()
        self._without_optimizer: bool | None = None
        """Whether the script has no optimizer; None before the first backward pass."""
        self._passed = False
        """Whether a backward pass has ended, which ends the step in such a script."""
        self._calls_modules = False
        self._late = False
        self._skipped = False
        """Whether a gradient scaler skipped the recorded step."""

    def __enter__(self) -> None:
        # A recording cannot begin inside of a compiled function, such as one that calls the optimizer.
        self._hooks.enter_context(compiling_nothing())
        self.count()

    def count(self) -> None:
        """Count the steps from here on."""
        self._hooks.callback(register_optimizer_step_pre_hook(self._before_step).remove)
        self._hooks.callback(register_optimizer_step_post_hook(self._after_step).remove)
        self._hooks.callback(on_skipped_step(self._after_skip))
        self._hooks.callback(on_backward(self._after_backward))
        self._hooks.callback(on_module_calls(self._before_module))
        if self.number == 1:
            self._hooks.callback(on_module_call(self._begin, self._thread))

    @property
    def here(self) -> bool:
        """Whether this is the thread of the recorder, and no forked process."""
        return threading.get_ident() == self._thread and os.getpid() == self._process

    def __exit__(self, *_: object) -> None:
        if self._passed and self.step is not None:
            self.ended, self.complete = self.ended + 1, True
        self._recording.close()
        self._hooks.close()

    def _after_backward(self, _: Any) -> None:
        if not self.here:
            return
        if self._without_optimizer is None:
            self._without_optimizer = not live_objects(torch.optim.Optimizer)
        self._passed = self._without_optimizer
        if self._passed and not self._calls_modules:
            self._end_pass()

    def _before_module(self, module: torch.nn.Module) -> None:
        self._calls_modules = True
        if self._passed and torch.is_grad_enabled() and self.here:
            self._end_pass()

    def _end_pass(self) -> None:
        self._passed = False
        self._end_step()

    def title(self, script: str) -> str:
        """Return the title of the recorded step."""
        return f"recorded step {self.shown} of {script}"

    @property
    def place(self) -> str:
        """Where the script is, for messages."""
        if self.step is not None:
            return f"in step {self.shown}"
        return f"before step {self.shown}" + (f", after {counted(self.ended, 'step')}" if self.ended else "")

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user must know of the step."""
        assert self.step is not None
        if self._skipped:
            return ("the gradient scaler skipped the update of this step",)
        if self._late and "backward" not in self.step.program.graphs:
            return ("no module was called before step 1, which has only the optimizer; step 2 is whole",)
        return ()

    def _begin(self) -> None:
        if self.step is None and self.here:
            optimizers = live_objects(torch.optim.Optimizer)
            self.step = self._recording.enter_context(record(models_of(optimizers), optimizers))

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not self.here or not self._counts(optimizer):
            return
        self._without_optimizer = self._passed = False
        if self._outermost is None:
            self._outermost = optimizer
        if self.step is None and self.ended == self.number - 1:
            self._late = True
            self._begin()

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._outermost is not optimizer or not self.here:
            return
        self._outermost = None
        self._end_step()

    def _after_skip(self, optimizer: Any) -> None:
        if not self.here or not self._counts(optimizer):
            return
        if self.step is None and self.ended == self.number - 1:
            self._begin()
        self._skipped = self.ended == self.number - 1
        self._end_step()

    def _counts(self, optimizer: Any) -> bool:
        """Return whether the steps of an optimizer are counted."""
        return True

    def _end_step(self) -> None:
        self.ended += 1
        if self.ended >= self.number:
            self._recording.close()
            self.complete = True
        self._step_ended()
        if self.complete:
            raise _StepRecorded
        if self.ended == self.number - 1:
            self._begin()

    def _step_ended(self) -> None:
        """Called at the end of each step, outside of a recording."""

    def missing(self, script: str) -> NncdbgError:
        """Return the error of a script that ended before the end of the step."""
        if not self.ended:
            return UsageError(
                f"{script} ended without a step of an optimizer",
                hint="nncdbg records steps of torch.optim optimizers, or backward passes of a script without "
                "one, in the process and on the thread that it starts",
            )
        last = f" to {self.ended}" if self.ended > 1 else ""
        return UsageError(
            f"{script} ended after {counted(self.ended, 'step')}: there is no step {self.number}",
            hint=f"use --step 1{last}",
        )


def on_module_call(
    begin: Callable[[], None], thread: int | None = None, *, evaluation: bool = False
) -> Callable[[], None]:
    """Call `begin` before the first call of a module with gradients enabled; return how to give up.

    With `evaluation`, a call without gradients counts too.
    The call of a compiled function counts too.  With `thread`, calls on other threads do not count.  A weight
    that `spectral_norm` or another parametrization computes while the model is built does not count either.
    """

    def hear(called: Any, *_: Any) -> None:
        if thread not in (None, threading.get_ident()) or not (evaluation or torch.is_grad_enabled()):
            return
        running = called, *running_modules(sys._getframe(1))
        if any(isinstance(each, ParametrizationList) for each in running):
            return
        restore()
        begin()

    ended = on_module_calls(hear), on_compiled_call(hear, lambda *_: None)

    def restore() -> None:
        for end in ended:
            end()

    return restore


def running_modules(frame: FrameType | None) -> Iterator[Any]:
    """Yield the modules that are called in a frame or one of its callers, innermost first."""
    while frame is not None:
        if frame.f_code is module_call:
            yield frame.f_locals["self"]
        frame = frame.f_back
