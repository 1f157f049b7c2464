"""Record the training step in a block: `with nncdbg.torch.record(model, optimizer) as step:`."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch

from nncdbg.engine.ops.aten.internals import (
    compiling_nothing,
    dispatch_modes,
    function_modes,
    uncompiled,
    unseen,
    unseen_by_functions,
)
from nncdbg.errors import UsageError
from nncdbg.process.collector import collector_paused
from nncdbg.torch.guard_kernels import using_library
from nncdbg.torch.hooks import around_waits, before_unseen_writes, hidden_hooks, untraced_hooks
from nncdbg.torch.named_models import (
    Models,
    NamedTensor,
    Optimizers,
    closure_of,
    dense_parts,
    listed_optimizers,
    named_models,
    named_tensors,
    own_tensors,
    runs_only_torch,
    submodules,
    takes_hooks,
)
from nncdbg.torch.recorded_step import RecordedStep, program_of, texts_of
from nncdbg.torch.recording import Recorder
from nncdbg.torch.sharded_tensors import placement
from nncdbg.torch.source_frames import NO_BACKWARD
from nncdbg.torch.source_lines import compiled_calls, user_lines
from nncdbg.torch.storages import Input, Key, copy_content

_EAGER = "torch.compile compiles nothing while a step is recorded: the step ran eagerly"

_NO_CHECKSUMS = "out of memory for checksums of the results: a run cannot be compared with them"

_recording = threading.local()
"""`active` is True while this thread records."""


@contextmanager
def record(model: Models | None = None, optimizer: Optimizers | None = None) -> Iterator[RecordedStep]:
    """Record each operator that the block runs, in forward, backward and optimizer, as a program.

    `model` (one, several, or by name) names parameters, buffers and layers; `optimizer` (one or several)
    names moments and separates its phase.  Operators run as without recording.  If the block raises, the
    program ends there, and the exception is raised as usual.  If the step cannot be recorded, as without
    memory for its inputs or with a nested tensor, the block runs on; `step.program` raises RunError then.

    Raises UsageError for a nested recording and for arguments of other types.
    """
    with recording_of(named_models(model), listed_optimizers(optimizer)) as step:
        yield step


@contextmanager
def recording_of(
    modules: Mapping[str, torch.nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    states: Callable[[], Mapping[str, Any]] = dict,
    *,
    failed: bool = False,
) -> Iterator[RecordedStep]:
    """Record the block as `record` does; `states` returns other tensors that live over steps, by name.

    In a step that `failed`, results that no operator has read are outputs too.
    """
    if getattr(_recording, "active", False):
        raise UsageError(
            "a recording cannot start inside another recording",
            hint="record the whole step in one block of `nncdbg.torch.record`",
        )
    recorder, step = Recorder(), RecordedStep()
    compiled_before = compiled_calls()
    with ExitStack() as ending:
        ending.callback(recorder.release)
        ending.callback(_finish, step, recorder, modules, optimizers, states, compiled_before)
        if failed:
            ending.callback(recorder.label_unread)
        with recording_with(recorder, modules, optimizers, states), recorder:
            yield step


@contextmanager
def recording_with(
    recorder: Recorder,
    modules: Mapping[str, torch.nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    states: Callable[[], Mapping[str, Any]] = dict,
    *,
    compiles: bool = False,
) -> Iterator[None]:
    """Name what `recorder` records; the caller passes the operators to it, and releases it.

    With `compiles`, functions of `torch.compile` run compiled, and the caller passes it no operators of them.
    """
    recorder.source.begin(sys._getframe(1))
    with ExitStack() as hooks, ExitStack() as naming:
        naming.enter_context(unseen_by_functions())
        # Each event has some objects that stay: the collector would scan all modules for them.
        hooks.enter_context(collector_paused())
        hooks.enter_context(using_library())
        own = [*own_tensors(modules), *states().items()]
        recorder.parameters.update((id(tensor), name) for name, tensor in own)
        _label(recorder, named_tensors(own, optimizers))
        removable: list[Any] = []
        hooks.enter_context(hidden_hooks(removable))
        hooks.callback(_remove, removable)
        removable += _hooks(recorder, modules, own, optimizers)
        hooks.enter_context(untraced_hooks(removable, only_bodies=not compiles))
        if not compiles:
            # The compiler would trace the recorder as part of the functions that it compiles.
            hooks.enter_context(compiling_nothing())
        hooks.enter_context(before_unseen_writes(recorder.keep_memory))
        hooks.enter_context(around_waits(recorder.waiting))
        _recording.active = True
        hooks.callback(setattr, _recording, "active", False)
        naming.close()
        yield


@unseen
def step_so_far(
    recorder: Recorder,
    modules: Mapping[str, torch.nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    compiled_before: int,
    states: Mapping[str, Any] | None = None,
    *,
    failed: bool = False,
) -> RecordedStep:
    """Return what was recorded until now; the recording continues.

    `compiled_before` is the number of `compiled_calls` before it, and `states` are other tensors that live
    over steps.  `failed` is as for `recording_of`.  Raises RunError without memory for the inputs.
    """
    if recorder.failure is not None:
        raise recorder.failure.with_traceback(None)
    named = named_tensors([*own_tensors(modules), *(states or {}).items()], optimizers)
    _label(recorder, named)
    if failed:
        recorder.label_unread()
    inputs = {number: replace(kept, keys=dict(kept.keys)) for number, kept in recorder.inputs.items()}
    for kept in inputs.values():
        if kept.content is None:
            copy_content(kept, recorder.copies, whole=False)
    step = RecordedStep()
    step._notes = _notes(compiled_before)
    _complete(step, recorder, inputs, modules, named)
    return step


@unseen
def _finish(
    step: RecordedStep,
    recorder: Recorder,
    modules: Mapping[str, torch.nn.Module],
    optimizers: Iterable[torch.optim.Optimizer],
    states: Callable[[], Mapping[str, Any]],
    compiled_before: int,
) -> None:
    """Complete a step: its program is built on first use, from what was recorded."""
    step._notes = _notes(compiled_before)
    frame = sys._getframe(1)
    recorder.source.at(frame, len(recorder.events), NO_BACKWARD)
    recorder.source.close(frame)
    # Moments that the first step makes, and gradients that a user sets, exist only now.
    named = named_tensors([*own_tensors(modules), *states().items()], optimizers)
    labelled = _label(recorder, named)
    recorder.copy_inputs()
    step.failure = recorder.failure
    if step.failure is not None:
        return
    try:
        checksums = recorder.checksums(labelled)
    except MemoryError:
        checksums = {}
        step._notes = (*step._notes, _NO_CHECKSUMS)
    _complete(step, recorder, recorder.inputs, modules, named, checksums)


def _complete(
    step: RecordedStep,
    recorder: Recorder,
    inputs: dict[int, Input],
    modules: Mapping[str, torch.nn.Module],
    named: Iterable[NamedTensor],
    checksums: Mapping[Key, str | np.ndarray[Any, Any]] | None = None,
) -> None:
    step._build = partial(
        program_of,
        recorder.events[:],
        inputs,
        dict(recorder.labels),
        dict(recorder.placements),
        {each.name: each.owner for each in named if each.persists},
        {name: type(module).__name__ for name, module in submodules(modules) if name},
        checksums,
        recorder.source.bindings[:],
        recorder.source.callers,
        texts_of(recorder.events),
    )


def _notes(compiled_before: int) -> tuple[str, ...]:
    return (_EAGER,) if compiled_calls() > compiled_before else ()


def _label(recorder: Recorder, named: Iterable[NamedTensor]) -> list[tuple[Any, Key | None]]:
    """Name the memory of tensors, and return each with its memory."""
    return [(each.tensor, recorder.label(each.tensor, each.name, each.placement)) for each in named]


def _remove(hooks: Iterable[Any]) -> None:
    for hook in hooks:
        hook.remove()


def _hooks(
    recorder: Recorder,
    models: Mapping[str, torch.nn.Module],
    own: Iterable[tuple[str, torch.Tensor]],
    optimizers: Iterable[torch.optim.Optimizer],
) -> Iterator[Any]:
    for model in filter(takes_hooks, map(uncompiled, models.values())):
        yield model.register_forward_pre_hook(
            _naming_arguments(recorder, model), prepend=True, with_kwargs=True
        )
    for name, module in submodules(models):
        if takes_hooks(module):
            enter, leave = partial(recorder.enter_module, name), partial(recorder.leave_module, name)
            yield module.register_forward_pre_hook(enter, prepend=True)
            yield module.register_forward_hook(leave, always_call=True)
    for name, tensor in own:
        if tensor.requires_grad and tensor.is_leaf:
            yield tensor.register_post_accumulate_grad_hook(_accumulated(recorder, f"{name}.grad"))
    for optimizer in optimizers:
        begin, end = _around_update(recorder)
        yield optimizer.register_step_pre_hook(begin)
        yield optimizer.register_step_post_hook(end)


def _naming_arguments(recorder: Recorder, model: torch.nn.Module) -> Callable[..., None]:
    """Return a hook that names the tensors passed to a model after the parameters of its `forward`."""

    @unseen
    def name_arguments(_: Any, positional: Any, keywords: Any) -> None:
        forward: Any = model.forward
        function = getattr(forward, "__func__", None)
        names = _positional_names(forward) if function is None else _positional_names(function)[1:]
        for name, value in (*zip(names, positional, strict=False), *keywords.items()):
            if isinstance(value, torch.Tensor) and value.is_leaf:
                for part, tensor in dense_parts(name, value):
                    recorder.label(tensor, part, placement(value))

    return name_arguments


@lru_cache(maxsize=64)
def _positional_names(function: Callable[..., Any]) -> Sequence[str]:
    """Return the names of the parameters that take positional arguments; a signature takes 50 us."""
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [each.name for each in inspect.signature(function).parameters.values() if each.kind in kinds]


def _accumulated(recorder: Recorder, name: str) -> Callable[[torch.Tensor], None]:
    @unseen
    def accumulated(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            placed = placement(parameter.grad)
            for part, tensor in dense_parts(name, parameter.grad):
                recorder.label(tensor, part, placed)

    return accumulated


def _around_update(recorder: Recorder) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return hooks around an update; the first finds the user's lines of all operators if they are the same.

    They differ if a closure, a hook or a mode of the user runs in the update.
    """

    def begin(optimizer: torch.optim.Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        recorder.optimizing += 1
        modes = dispatch_modes() > 1 or function_modes()
        frame = sys._getframe(1)
        same = closure_of(args, kwargs) is None and not modes and runs_only_torch(optimizer)
        recorder.update = (frame, user_lines(frame)) if same else None
        if same:
            recorder.visit_of_update = recorder.source.at(frame, len(recorder.events), NO_BACKWARD)

    def end(*_: Any) -> None:
        recorder.optimizing -= 1
        recorder.update = None

    return begin, end
