"""Check the outputs of modules and their gradients, to name the first module with NaN or Inf."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from threading import get_ident
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
from torch import is_grad_enabled
from torch.compiler import is_compiling
from torch.jit import is_tracing
from torch.nn.modules.module import register_module_forward_hook

from nncdbg.engine.ops.aten.internals import (
    current_autograd_node,
    transformation,
    uncompiled,
    without_dispatch,
)
from nncdbg.torch.finiteness import finite_in_memory, is_finite, not_finite
from nncdbg.torch.guard_findings import BadOrigin, module_label
from nncdbg.torch.guard_kernels import LIBRARY
from nncdbg.torch.hooks import untraced_hooks
from nncdbg.torch.sharded_tensors import PLAIN, is_sharded
from nncdbg.torch.source_lines import Lines, kind_of_frame, line_at, user_lines
from nncdbg.torch.step_call import no_tensor, tensors_in, version_of

if TYPE_CHECKING:
    from nncdbg.torch.guard_findings import GuardTrip

_GENERATED: Any = torch.fx.GraphModule

_KEEP_FINITE = {
    torch.nn.Flatten: "moves elements",
    torch.nn.Unflatten: "moves elements",
    torch.nn.PixelShuffle: "moves elements",
    torch.nn.PixelUnshuffle: "moves elements",
    torch.nn.ReLU: "keeps an element or makes it 0",
    torch.nn.ReLU6: "keeps an element or makes it 0 or 6",
    torch.nn.Sigmoid: "makes elements from 0 to 1",
    torch.nn.Tanh: "makes elements from -1 to 1",
}
"""Classes whose output is finite if their input is, and why; subclasses may do more.

Not so: dropout and average pools multiply and add, so an element may overflow; a max pool with dilation may
see nothing but its padding of -Inf.
"""

_COMPILE_WARNING = "Using `torch.compile\\(module\\)` when there are global hooks on modules"
"""The start of a warning of torch about hooks on all modules, which `_check_outputs` allows for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadModule(BadOrigin):
    """A module with NaN or Inf in its outputs or their gradients, and the user's lines that call it."""

    finite: str = ""
    """Backward: the module with the last finite gradient before this one; empty without any."""

    def __str__(self) -> str:
        """Return one sentence about the module."""
        tensor = "output" if self.phase == "forward" else "gradient of the output"
        if self.phase == "forward":
            listed = self._operands_text
            before = f"its {listed}" if listed else "its inputs and parameters are finite"
        elif self.finite:
            before = f"the gradient before it, of the output of {self.finite}, is finite"
        else:
            before = "it originates in code after this module, such as the loss"
        return (
            f"the first {self.value} of the {self.phase} pass is in the {tensor} of "
            f"{module_label(self.path, self.type)}: {self.counts}; {before}"
        )

    @property
    def relation(self) -> str:
        """Return what happens at `location`."""
        return "called at"

    def as_dict(self) -> dict[str, Any]:
        """Return the module as a JSON object."""
        return {
            "phase": self.phase,
            "path": self.path,
            "type": self.type,
            "counts": self.counts,
            "location": self._location_as_dict,
            "operands": dict(self.operands),
            "finite_before": self.finite or None,
        }


class ModuleWatch:
    """Checks each module of the thread that enters it, while it is `active`.

    The first ones with NaN and with Inf are kept until `forget`.
    """

    checks_updates = False
    skips_safe_updates = False

    def __init__(self) -> None:
        self.active = False
        self.updating = False
        """Whether an optimizer runs, which calls no module."""
        self.idle = False
        self._seen: list[tuple[torch.nn.Module, torch.nn.Module | None, BadModule]] = []
        """Bad modules, whose paths are not searched yet, with the last module with a finite gradient."""
        self._thread = 0
        self._checked: Any = no_tensor
        """A weak reference to the output that was checked last: outer modules return it again."""
        self._version = 0
        """The version of that output, which a write in place increases."""
        self._was_finite = False
        """Whether that output was finite."""
        self._last_finite: torch.nn.Module | None = None
        """The module with the last finite gradient of this backward pass."""
        self._entered = ExitStack()

    def __enter__(self) -> ModuleWatch:
        warnings.filterwarnings("ignore", message=_COMPILE_WARNING)
        self._entered.callback(_drop_filter, warnings.filters[0])
        check = self._compiled_check() or self._check_outputs
        handle = register_module_forward_hook(check, with_kwargs=True)
        self._entered.callback(handle.remove)
        self._entered.enter_context(untraced_hooks([handle]))
        self._thread, self.active = get_ident(), True
        return self

    def __exit__(self, *_: object) -> None:
        self.active = False
        self._entered.close()
        self.forget()
        self._last_finite = None

    def forget(self) -> None:
        """Forget the bad modules: a step starts here."""
        self._seen = []

    def name_origin(self, trip: GuardTrip, paths: Mapping[int, str]) -> None:
        """Enter the bad modules of this step in their order, up to the first one with NaN."""
        for module, last, bad in self._seen:
            finite = "" if last is None else module_label(paths.get(id(last), ""), _type(last))
            trip.modules.append(replace(bad, path=paths.get(id(module), ""), finite=finite))
        if not self._seen:
            trip.notes.append("no NaN or Inf was found in the outputs of modules or their gradients")

    def _compiled_check(self) -> Callable[..., None] | None:
        """Return `_check_outputs` as the library does it; None without the library."""
        library = LIBRARY.module()
        if library is None:
            return None
        check = library.OutputCheck(self, self._check_outputs, _KEEP_FINITE, _GENERATED, kind_of_frame)

        def check_outputs(module: torch.nn.Module, args: Any, kwargs: Any, result: Any) -> None:
            # The compiler traces hooks, but no function in C++.
            if not is_compiling():
                check(module, args, kwargs, result)

        return check_outputs

    def _check_outputs(self, module: torch.nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        # A step calls this for each module: one call of Python less saves up to 2 us.
        if is_compiling() or not self.active or get_ident() != self._thread or not is_grad_enabled():
            return
        single = result.__class__ is torch.Tensor
        if single and self._checked() is result and self._version == version_of(result):
            return
        if transformation() is not None or is_tracing():
            return
        if isinstance(module, _GENERATED):
            return  # Code that torch.compile generated; the module around it is checked.
        if current_autograd_node() is None:  # Otherwise checkpointing runs the module again.
            self._last_finite = None
        lines = None
        for output in (result,) if single else tensors_in(result):
            if not _can_be_bad(output):
                continue
            if not single and self._checked() is output and self._version == version_of(output):
                continue  # The one that was checked last, unchanged.
            kept = type(module) in _KEEP_FINITE and self._stays_finite(module, args, output)
            finite = kept or _finite(output)
            self._checked, self._version, self._was_finite = weakref.ref(output), version_of(output), finite
            lines = lines or user_lines(sys._getframe(1), most=1)
            if not finite:
                self._add("forward", module, output, lines, _operands(module, args, kwargs))
            if output.requires_grad and not output.is_leaf:
                # Cheaper than a hook on the tensor, and a `StepCalls` does not keep it.
                check = partial(self._check_gradient, module, lines, output.output_nr)
                output.grad_fn.register_prehook(check)

    def _stays_finite(self, module: torch.nn.Module, args: Sequence[Any], output: Any) -> bool:
        """Return whether a module of `_KEEP_FINITE` made the output from an input that was finite.

        The input must be the output of the module before it.
        """
        if "forward" in vars(module) or not self._was_finite:
            return False
        if len(args) != 1 or self._checked() is not args[0]:
            return False
        own_writes = bool(getattr(module, "inplace", False)) and not output.is_inference()
        return version_of(args[0]) == self._version + own_writes

    def _check_gradient(
        self, module: torch.nn.Module, lines: Lines, index: int, gradients: Sequence[Any]
    ) -> None:
        # Compiled autograd traces hooks.
        if is_compiling() or not self.active:
            return
        gradient = gradients[index]
        if not _can_be_bad(gradient):
            return
        if _finite(gradient):
            self._last_finite = module
        else:
            self._add("backward", module, gradient, lines, ())

    def _check_gradient_at(
        self, module: torch.nn.Module, code: CodeType | None, position: int, gradient: Any
    ) -> None:
        """Check a gradient for a module that is called by an instruction of the user, at its byte."""
        self._check_gradient(module, () if code is None else line_at(code, position), 0, (gradient,))

    def _add(
        self,
        phase: str,
        module: torch.nn.Module,
        tensor: Any,
        lines: Lines,
        operands: Sequence[tuple[str, Any]],
    ) -> None:
        """Keep a module with a bad tensor, unless an earlier one of the step explains it."""
        known = self._seen
        if any(each.value == "NaN" for *_, each in known):
            return
        with without_dispatch():
            counts = not_finite(tensor)
            spoiled = {name: found for name, each in operands if (found := not_finite(each))}
        value = "NaN" if "NaN" in counts else "Inf"
        if value == "Inf" and any(each.phase == phase for *_, each in known):
            return
        bad = BadModule(
            phase=phase, value=value, type=_type(module), counts=counts, lines=lines, operands=spoiled
        )
        known.append((module, self._last_finite, bad))


def _can_be_bad(tensor: Any) -> bool:
    """Return whether a tensor is one of torch's own that can be checked now, or has a shard on this rank."""
    return (
        (tensor.__class__ in PLAIN or is_sharded(tensor))
        and (tensor.is_floating_point() or tensor.is_complex())
        and not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def _finite(tensor: Any) -> bool:
    """Return whether no element is NaN or Inf; no dispatch mode of the user sees the check."""
    found = finite_in_memory(tensor)
    if found is not None:
        return found
    with without_dispatch():
        return is_finite(tensor)


def _operands(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """Return the tensors of a call of a module by name: inputs, its own parameters and buffers."""
    named: list[tuple[str, Any]] = []
    given = {f"input {n}" if len(args) > 1 else "input": each for n, each in enumerate(args, 1)}
    for name, value in (given | {f"input {key}": each for key, each in kwargs.items()}).items():
        named += [(name, each) for each in tensors_in(value)]
    named += module.named_parameters(recurse=False)
    named += module.named_buffers(recurse=False)
    return [(name, each) for name, each in named if _can_be_bad(each)]


def _type(module: torch.nn.Module) -> str:
    return type(uncompiled(module)).__name__


def _drop_filter(filter_: Any) -> None:
    """Remove a filter of warnings, if the user has not reset them since."""
    if filter_ in warnings.filters:
        warnings.filters.remove(filter_)  # type: ignore[attr-defined]
