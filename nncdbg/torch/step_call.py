"""One call of a training step, as it is kept for a second run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nncdbg.engine.ops.aten.internals import is_wrapped, transformation
from nncdbg.torch.source_lines import Lines
from nncdbg.torch.step_state import RandomState

BACKWARD, GRADIENT, REGISTER_HOOK = "backward", "grad", "register_hook"
"""Names of functions of autograd that the tape keeps."""


@dataclass(slots=True)
class StepCall:
    """One call at the top level of a step, with the tensors themselves."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    lines: Lines
    gradients_enabled: bool
    result: Any = None
    random: RandomState | None = None
    """The state of the random generators before a module, a function or an operator that draws."""
    autocast: tuple[str, torch.dtype] | None = None
    """Device and dtype of the autocast around a module or a loss."""
    generator: tuple[Any, Any] | None = None
    """The generator that the user passed to an operator, and its state before."""
    name: str = ""
    """That of a function of autograd, in whose place the user may have put another one."""
    parameters: Sequence[Any] = ()
    """Of a `backward`: the parameters that are trained."""
    gradients: Sequence[Any] = ()
    """Their gradients after it."""
    rewrites: bool = False
    """Whether a second run makes its writes to memory from before the step again, as there are copies."""


def tensors_in(value: Any) -> Iterator[Any]:
    """Yield the tensors in nested lists, tuples, dictionaries and objects with named fields."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from tensors_in(getattr(value, name, None))


def is_plain(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether no tensor belongs to a transformation of `torch.func`."""
    return transformation() is None or not any(is_wrapped(tensor) for tensor in tensors_in((args, kwargs)))


def history_of(tensor: Any) -> Any:
    """Return the node of autograd that made a tensor.

    torch raises for a view from `no_grad` mode whose base was written to since: it has no node.
    """
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None
