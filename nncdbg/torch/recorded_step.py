"""Record the training step in a block: `with nncdbg.torch.record(model, optimizer) as step:`."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, TypeAlias

import numpy as np
import torch

from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.determinism import DeterminismVerification, verify_determinism
from nncdbg.engine.errors import RunError, UsageError
from nncdbg.engine.graph import Program, SavedRun
from nncdbg.engine.ops.aten.arrays import host_array
from nncdbg.engine.ops.aten.internals import (
    compiling_nothing,
    is_wrapped,
    key_of,
    uncompiled,
    uncompiled_name,
)
from nncdbg.engine.process.collector import collector_paused
from nncdbg.opening.folder_writing import write_folder
from nncdbg.representation import RichOutput, representations
from nncdbg.torch.program import RecordedProgram, program_of
from nncdbg.torch.recording import Recorder
from nncdbg.torch.source_lines import compiled_calls
from nncdbg.torch.storages import copy_content

Models: TypeAlias = "torch.nn.Module | Iterable[torch.nn.Module] | Mapping[str, torch.nn.Module]"
Optimizers: TypeAlias = "torch.optim.Optimizer | Iterable[torch.optim.Optimizer]"


BACKEND = "torch"

_NUMBERS = count(1)

_EAGER = "torch.compile compiles nothing while a step is recorded: the step ran eagerly"

_NO_CHECKSUMS = "out of memory for checksums of the results: a run cannot be compared with them"

_recording = threading.local()
"""`active` is True while this thread records."""


class RecordedStep(RichOutput):
    """A recorded step.  It is complete when the block of `record` has ended.

    A step that does not fit in memory is not recorded, and its block runs on: `notes` says so, and all that
    needs the program raises RunError.

    Functions that take a program take a recorded step as well: `nncdbg.Debugger(step)`.
    """

    def __init__(self) -> None:
        self._recorded: RecordedProgram | None = None
        self._build: Callable[[], RecordedProgram] | None = None
        self._failure: RunError | None = None
        """Why nothing was recorded."""
        self._program: Program | None = None
        self._notes: tuple[str, ...] = ()
        self._number = next(_NUMBERS)

    @property
    def complete(self) -> bool:
        """Whether the block of `record` has ended, and the step was recorded."""
        return self._build is not None

    @property
    def program(self) -> Program:
        """The program: graphs `@forward`, `@backward`, `@optimizer`, and one for each module.

        It runs on the backend torch with the inputs of the step, unless others are given.
        """
        if self._program is None:
            recorded = self._complete()
            saved = SavedRun(
                origin=f"recorded step {self._number}",
                inputs=self.inputs,
                backend=BACKEND,
                checksums=recorded.checksums,
            )
            self._program = replace(recorded.program, notes=self.notes, saved=saved)
        return self._program

    @property
    def inputs(self) -> dict[str, np.ndarray[Any, Any]]:
        """The inputs of the program by name: parameters, buffers, moments, the batch, random states."""
        return {name: host_array(tensor) for name, tensor in self._complete().inputs.items()}

    @property
    def changed(self) -> dict[str, str]:
        """Parameter, buffer, gradient (``w.grad``) or moment (``w.exp_avg``) to its value at the end."""
        return dict(self._complete().changed)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the program cannot show, a sentence each."""
        if self._failure is not None:
            return (*self._notes, self._failure.message)
        return (*self._notes, *self._complete().notes)

    def plot(self, axes: Any = None) -> Any:
        """Run the step, and plot norm and largest absolute value of each float result over its statements.

        Forward pass, backward pass and optimizer are on one axis; red lines mark NaN and Inf.  Return
        matplotlib's axes, new ones if none are given.  Raises UsageError without matplotlib.
        """
        return representations().plot(self.program, self.inputs, axes)

    def save(
        self, directory: str | os.PathLike[str], *, title: str | None = None, notes: Iterable[str] = ()
    ) -> None:
        """Save the step as a program folder, which `nncdbg DIRECTORY` and `nncdbg.load(directory)` open.

        `title` is the line shown when the folder opens, and `notes` are shown below it.  The folder is
        created, or replaced if nncdbg wrote it.

        Raises UsageError if the path holds anything else; LoadError if the folder cannot be written.
        """
        title = title if title is not None else f"recorded step{self._script()}"
        notes = [*self.notes, *notes]
        write_folder(
            directory,
            self.program,
            self.inputs,
            backend=BACKEND,
            settings={"checksums": self.program.saved.checksums},
            title=title,
            notes=notes,
        )

    def verify_determinism(self) -> DeterminismVerification:
        """Run the step twice, and compare the bits of each result, and those of the training at the end.

        The report names the first statement that differs, as ``print(step.verify_determinism())`` shows.
        Its `ok` is False too if both runs agree, but a parameter, buffer, gradient or moment has other bits
        than the step left in it: the step depends on more than its inputs.
        """
        return verify_determinism(
            lambda: Debugger(self.program, statistics=False), self.program.saved.checksums
        )

    def _script(self) -> str:
        """Return the file that ran the first operator, as `` of train.py``; "" if there is none."""
        for graph in self._complete().program.graphs.values():
            for place in (node.location for node in graph.nodes if node.location is not None):
                lines = [place.file or "", *(file for file, _ in place.stack)]
                files = [os.path.basename(file) for file in lines if file and not file.startswith("<")]
                if files:
                    return f" of {files[-1]}"
        return ""

    def __repr__(self) -> str:
        if self._failure is not None:
            return f"<RecordedStep, {self._failure.message}>"
        if self._build is None:
            return "<RecordedStep, not complete>"
        return f"<RecordedStep {self.program.summary()}>"

    def _complete(self) -> RecordedProgram:
        if self._failure is not None:
            # Each time without the frames of the last time, which hold tensors.
            raise self._failure.with_traceback(None)
        if self._build is None:
            raise UsageError(
                "the step is not complete yet",
                hint="use it after the block of `with nncdbg.torch.record(...)`",
            )
        if self._recorded is None:
            self._recorded = self._build()
        return self._recorded


@contextmanager
def record(model: Models | None = None, optimizer: Optimizers | None = None) -> Iterator[RecordedStep]:
    """Record each operator that the block runs, in forward, backward and optimizer, as a program.

    `model` (one, several, or by name) names parameters, buffers and layers; `optimizer` (one or several)
    names moments and separates its phase.  Operators run as without recording.  If the block raises, the
    program ends there, and the exception is raised as usual.  Without memory for the inputs of the step,
    the block runs on and nothing is recorded.

    Raises UsageError for a nested recording and for arguments of other types.
    """
    if getattr(_recording, "active", False):
        raise UsageError(
            "a recording cannot start inside another recording",
            hint="record the whole step in one block of `nncdbg.torch.record`",
        )
    modules, optimizers = named_models(model), listed_optimizers(optimizer)
    recorder = Recorder()
    with recording_with(recorder, modules, optimizers) as step, recorder:
        yield step


@contextmanager
def recording_with(
    recorder: Recorder,
    modules: Mapping[str, torch.nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
) -> Iterator[RecordedStep]:
    """Name what `recorder` records; the caller passes the operators to it."""
    step = RecordedStep()
    compiled_before = compiled_calls()
    with ExitStack() as hooks:
        hooks.callback(recorder.release)
        # Each event has some objects that stay: the collector would scan all modules for them.
        hooks.enter_context(collector_paused())
        hooks.callback(lambda: _finish(step, recorder, modules, optimizers, compiled_before))
        for name, tensor in _tensors(modules):
            recorder.parameters[id(tensor)] = name
        _label(recorder, modules, optimizers)
        for hook in _hooks(recorder, modules, optimizers):
            hooks.callback(hook.remove)
        # The compiler would trace the recorder as part of the functions that it compiles.
        hooks.enter_context(compiling_nothing())
        _recording.active = True
        hooks.callback(setattr, _recording, "active", False)
        yield step


def step_so_far(
    recorder: Recorder,
    modules: Mapping[str, torch.nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    results: Sequence[Any] = (),
) -> RecordedStep:
    """Return what was recorded until now; the recording continues.

    Its program also returns `results`, which are tensors of the recording.

    Raises RunError without memory for the inputs.
    """
    if recorder.failure is not None:
        raise recorder.failure.with_traceback(None)
    _label(recorder, modules, optimizers)
    inputs = {number: replace(kept, keys=dict(kept.keys)) for number, kept in recorder.inputs.items()}
    for kept in inputs.values():
        if kept.content is None:
            copy_content(kept, whole=False)
    step = RecordedStep()
    labels = dict(recorder.labels)
    for number, tensor in enumerate(results):
        if tensor.layout is torch.strided and not is_wrapped(tensor):
            labels.setdefault(key_of(tensor), f"result.{number}" if number else "result")
    step._build = partial(program_of, recorder.events[:], inputs, labels, _classes(modules))
    return step


def _finish(
    step: RecordedStep,
    recorder: Recorder,
    modules: Mapping[str, torch.nn.Module],
    optimizers: Iterable[torch.optim.Optimizer],
    compiled_before: int,
) -> None:
    """Complete a step: its program is built on first use, from what was recorded."""
    if compiled_calls() > compiled_before:
        step._notes = (_EAGER,)
    # Moments that the first step makes, and gradients that a user sets, exist only now.
    _label(recorder, modules, optimizers)
    recorder.copy_inputs()
    step._failure = recorder.failure
    if step._failure is not None:
        return
    try:
        checksums = recorder.checksums(tensor for _, tensor in named_tensors(modules, optimizers))
    except MemoryError:
        checksums = {}
        step._notes = (*step._notes, _NO_CHECKSUMS)
    step._build = partial(
        program_of, recorder.events, recorder.inputs, recorder.labels, _classes(modules), checksums
    )


def _classes(modules: Mapping[str, torch.nn.Module]) -> dict[str, str]:
    return {name: type(module).__name__ for name, module in _submodules(modules) if name}


def named_models(model: Models | None) -> dict[str, torch.nn.Module]:
    """Return the models by name; a single one has no name.  Raises UsageError for anything else."""
    if model is None:
        return {}
    if isinstance(model, torch.nn.Module):
        return {"": model}
    found = dict(model) if isinstance(model, Mapping) else {}
    if not isinstance(model, Mapping):
        listed = list(model) if isinstance(model, Iterable) else [model]
        found = {f"model{index}" if len(listed) > 1 else "": each for index, each in enumerate(listed)}
    for each in found.values():
        if not isinstance(each, torch.nn.Module):
            raise UsageError(
                f"a model must be a torch.nn.Module, not {type(each).__name__}",
                hint="pass the model first, then the optimizer",
            )
    return found


def listed_optimizers(optimizer: Optimizers | None) -> list[torch.optim.Optimizer]:
    """Return the optimizers.  Raises UsageError for anything else."""
    if optimizer is None:
        return []
    listed = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    listed = [_innermost(each) for each in listed]
    for each in listed:
        if not isinstance(each, torch.optim.Optimizer):
            raise UsageError(
                f"an optimizer must be a torch.optim.Optimizer, not {type(each).__name__}",
                hint="pass the model first, then the optimizer",
            )
    return listed


def _innermost(optimizer: Any) -> Any:
    """Return the optimizer inside of a wrapper of Accelerate or Lightning, which has the hooks."""
    inside = getattr(optimizer, "optimizer", None)
    return _innermost(inside) if isinstance(inside, torch.optim.Optimizer) else optimizer


def _submodules(models: Mapping[str, torch.nn.Module]) -> Iterator[tuple[str, torch.nn.Module]]:
    for prefix, model in models.items():
        for name, module in model.named_modules():
            if uncompiled(module) is module:
                yield ".".join(part for part in (prefix, uncompiled_name(name)) if part), module


def _tensors(models: Mapping[str, torch.nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and buffers by name, but for those of lazy modules that have no size yet."""
    for prefix, model in models.items():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if not torch.nn.parameter.is_lazy(tensor):
                plain = uncompiled_name(name)
                yield (f"{prefix}.{plain}" if prefix else plain), tensor


def _label(
    recorder: Recorder, models: Mapping[str, torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer]
) -> None:
    for name, tensor in named_tensors(models, optimizers):
        recorder.label(tensor, name)


def named_tensors(
    models: Mapping[str, torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters, buffers, gradients (``w.grad``) and moments (``w.exp_avg``) that exist, by name."""
    owners: dict[int, str] = {}
    for name, tensor in _tensors(models):
        owners[id(tensor)] = name
        yield name, tensor
        # torch warns when the gradient of any other tensor is read.
        if (tensor.is_leaf or tensor.retains_grad) and tensor.grad is not None:
            yield f"{name}.grad", tensor.grad
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            for key, moment in state.items():
                if isinstance(moment, torch.Tensor):
                    yield f"{owners.get(id(parameter), 'parameter')}.{key}", moment


def _hooks(
    recorder: Recorder, models: Mapping[str, torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer]
) -> Iterator[Any]:
    for model in map(uncompiled, models.values()):
        yield model.register_forward_pre_hook(
            _naming_arguments(recorder, model), prepend=True, with_kwargs=True
        )
    for name, module in _submodules(models):
        yield module.register_forward_pre_hook(_entering(recorder, name), prepend=True)
        yield module.register_forward_hook(_leaving(recorder, name), always_call=True)
    for name, tensor in _tensors(models):
        if tensor.requires_grad and tensor.is_leaf:
            yield tensor.register_post_accumulate_grad_hook(_accumulated(recorder, f"{name}.grad"))
    for optimizer in optimizers:
        yield optimizer.register_step_pre_hook(_optimizing(recorder, 1))
        yield optimizer.register_step_post_hook(_optimizing(recorder, -1))


def _naming_arguments(recorder: Recorder, model: torch.nn.Module) -> Callable[..., None]:
    """Return a hook that names the tensors passed to a model after the parameters of its `forward`."""
    signature = inspect.signature(model.forward)

    def name_arguments(_: Any, positional: Any, keywords: Any) -> None:
        try:
            bound = signature.bind(*positional, **keywords)
        except TypeError:
            return  # `forward` raises this error itself.
        for name, value in bound.arguments.items():
            if isinstance(value, torch.Tensor) and value.is_leaf:
                recorder.label(value, name)

    return name_arguments


def _entering(recorder: Recorder, name: str) -> Callable[..., None]:
    def enter(*_: Any) -> None:
        recorder.enter_module(name)

    return enter


def _leaving(recorder: Recorder, name: str) -> Callable[..., None]:
    def leave(*_: Any) -> None:
        recorder.leave_module(name)

    return leave


def _accumulated(recorder: Recorder, name: str) -> Callable[[torch.Tensor], None]:
    def accumulated(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            recorder.label(parameter.grad, name)

    return accumulated


def _optimizing(recorder: Recorder, change: int) -> Callable[..., None]:
    def step(*_: Any) -> None:
        recorder.optimizing += change

    return step
