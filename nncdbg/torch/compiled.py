"""What a compiled module computes, as golden values for its captured program."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from nncdbg.engine.frontends.exported.calls import positional_arguments, tracing
from nncdbg.engine.ops.aten.arrays import host_array
from nncdbg.engine.ops.aten.internals import backend_named, compiling_nothing
from nncdbg.errors import LoadError, NncdbgError, UsageError
from nncdbg.ir.records import Array, Program, TensorType, Type, Value
from nncdbg.torch.capture import OUTPUT, named_leaves
from nncdbg.torch.recording import FORWARD, Recorder
from nncdbg.torch.source_lines import compiled_calls
from nncdbg.torch.step_recording import step_so_far


def compiled_values(
    module: torch.nn.Module,
    arguments: torch.Tensor | Sequence[Any] = (),
    keywords: Mapping[str, Any] | None = None,
    *,
    backend: str = "inductor",
) -> dict[str, Array]:
    """Run a copy of a module under `torch.compile`, forward and backward, and return the results by name.

    The names are those of the outputs of `nncdbg.torch.capture`; outputs of modules inside have the path of
    the module.  Only modules of `torch.nn` without modules inside have one.

    Raises UsageError for an unknown backend and for arguments that the module cannot take, LoadError if torch
    cannot compile or run the module.
    """
    check_backend(backend)
    copied, given = copy.deepcopy((module, (positional_arguments(arguments), dict(keywords or {}))))
    inside: dict[str, Any] = {}
    for name, part in copied.named_modules():
        # Only there is the output of a module the first result of its last statement.
        plain = type(part).__module__.startswith("torch.nn.modules.") and not list(part.children())
        if name and plain:
            part.register_forward_hook(_keeping(inside, name))
    positional, named = given
    with _running(copied, positional, named, backend):
        outputs = torch.compile(copied, backend=backend)(*positional, **named)
        tensors = _tensors(outputs)
        _run_backward(tensors)
    found = {f"{OUTPUT}.{index}" if index else OUTPUT: each for index, each in enumerate(tensors)}
    found |= {f"{name}.grad": each.grad for name, each in copied.named_parameters() if each.grad is not None}
    found |= {f"{name}.1": each for name, each in copied.named_buffers()}
    found |= {name: each for name, each in inside.items() if isinstance(each, torch.Tensor)}
    return {name: host_array(each.detach()) for name, each in found.items()}


def compiled_program(
    module: torch.nn.Module, arguments: torch.Tensor | Sequence[Any] = (), *, backend: str = "aot_eager"
) -> Program:
    """Return the program that a copy of a module runs under `torch.compile`, forward and backward.

    The backend must be one of those that run PyTorch's operators (see `runs_operators`).  Inputs and outputs
    have the names of `nncdbg.torch.capture`.

    Raises UsageError for an unknown backend and for arguments that the module cannot take, LoadError if torch
    cannot compile or run the module.
    """
    check_backend(backend)
    copied, given = copy.deepcopy((module, positional_arguments(arguments)))
    recorder = Recorder()

    def recording(graph: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        compiled = backend_named(backend)(graph, inputs)

        def run(*operands: Any) -> Any:
            # Compiled code is not used while a dispatch mode is active: it begins inside of the code.
            with recorder:
                return compiled(*operands)

        return run

    with _running(copied, given, {}, backend):
        for name, leaf in named_leaves(copied, given, {}):
            if isinstance(leaf, torch.Tensor):
                recorder.label(leaf, name)
        outputs = _tensors(torch.compile(copied, backend=recording)(*given))
        with compiling_nothing(), recorder:
            _run_backward(outputs)
    for index, output in enumerate(outputs):
        recorder.label(output.detach(), f"{OUTPUT}.{index}" if index else OUTPUT)
    program = step_so_far(recorder, {"": copied}, [], compiled_calls()).program
    recorder.release()
    return replace(program, saved=replace(program.saved, origin="the compiled module"))


def runs_operators(backend: str) -> bool:
    """Return whether a backend of `torch.compile` runs one operator of PyTorch after the other."""
    return backend.startswith(("eager", "aot_eager"))


def check_backend(name: str) -> None:
    """Raise UsageError if `torch.compile` has no backend with this name."""
    known = torch.compiler.list_backends(exclude_tags=())
    if name not in known:
        raise UsageError(f'torch.compile has no backend "{name}"', hint=f"use one of {', '.join(known)}")


def _running(
    module: torch.nn.Module, positional: tuple[Any, ...], named: Mapping[str, Any], backend: str
) -> AbstractContextManager[None]:
    """Explain an error of a compiled module.  Raises UsageError and LoadError."""
    return tracing(_failed(type(module).__name__, backend), module, positional, named, _NO_COMPILER)


@contextmanager
def naming_compiler(what: str, backend: str) -> Iterator[None]:
    """Raise LoadError with `what` is compiled for an exception of the compiler or of compiled code."""
    try:
        yield
    except NncdbgError:
        raise
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise LoadError(
            f"{_failed(what, backend)}: {type(error).__name__}: {first}", hint=_NO_COMPILER
        ) from error


def _failed(what: str, backend: str) -> str:
    return f"torch.compile cannot run {what} with {backend}"


_NO_COMPILER = "inductor needs a C++ compiler (CXX); aot_eager needs none"


def _tensors(outputs: Any) -> list[Any]:
    return [each for each in pytree.tree_leaves(outputs) if isinstance(each, torch.Tensor)]


def _run_backward(outputs: Sequence[torch.Tensor]) -> None:
    """Run the backward pass of a loss, or of all outputs with gradients of 1."""
    if outputs and not outputs[0].dim():
        outputs = outputs[:1]
    wanted = [each for each in outputs if each.requires_grad]
    torch.autograd.backward(wanted, [torch.ones_like(each) for each in wanted])


def _keeping(found: dict[str, Any], name: str) -> Callable[..., None]:
    def keep(_: Any, __: Any, output: Any) -> None:
        found[name] = output

    return keep


def value_names(program: Program, values: Mapping[str, Array]) -> dict[str, str]:
    """Return the value of a captured program for each golden value of the same size; others are left out."""
    made: dict[str, list[Value]] = {}
    graph = program.graphs.get(FORWARD)
    for node in program.executed(graph) if graph is not None else ():
        # A result that the backward pass reads is detached after the statement that computes it.
        if node.op != "aten.detach.default" and node.location and node.location.name and node.outputs:
            made.setdefault(node.location.name, []).append(node.outputs[0])
    outputs = {value.name for value in program.graph.outputs}
    names = {name: name for name in values if name in outputs}
    for name in made.keys() & values.keys():
        fitting = [value.name for value in made[name] if value.name and _fits(value.type, values[name].shape)]
        if fitting and fitting[-1] not in names:
            names[name] = fitting[-1]
    return names


def _fits(known: Type | None, sizes: Sequence[int]) -> bool:
    if not isinstance(known, TensorType) or known.shape is None or len(known.shape) != len(sizes):
        return False
    return all(
        not isinstance(one, int) or one == other for one, other in zip(known.shape, sizes, strict=True)
    )
