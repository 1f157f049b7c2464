"""One call of a training step, as it is kept for a second run."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nncdbg.engine.ops.aten.internals import is_wrapped, transformation
from nncdbg.torch.source_lines import Lines, Places, lines_of
from nncdbg.torch.step_state import RandomState

BACKWARD, GRADIENT, REGISTER_HOOK = "backward", "grad", "register_hook"
"""Names of functions of autograd that the tape keeps."""


@dataclass(slots=True)
class StepCall:
    """One call at the top level of a step, with the tensors themselves."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    places: Places
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

    @property
    def lines(self) -> Lines:
        """The user's lines that made the call, innermost first."""
        return lines_of(self.places)


_GONE = object()
"""A part of an `Evaluation` that no longer exists, or that a second run must not use again."""

_CONSTANTS = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.Size)


class _Weak:
    """The attribute `name` of a `StepCall`, in which tensors and modules are weak references."""

    def __init__(self, name: str) -> None:
        self._slot = vars(StepCall)[name]

    def __get__(self, call: Any, owner: Any = None) -> Any:
        return _strong(self._slot.__get__(call))

    def __set__(self, call: Any, value: Any) -> None:
        self._slot.__set__(call, _weak(value))


class Evaluation(StepCall):
    """A call of a module without gradients: a teacher, a frozen encoder, a batch of a validation.

    It has weak references to arguments and result: most evaluations are no part of a step.  The result is a
    list with a place for each tensor.  Arguments of other classes, such as a cache, are not used twice.
    """

    __slots__ = ()
    function: Any = _Weak("function")
    args: Any = _Weak("args")
    kwargs: Any = _Weak("kwargs")
    result: Any = _Weak("result")

    @property
    def is_complete(self) -> bool:
        """Whether it can be made again."""
        return not _has_gone([self.function, self.args, self.kwargs])


def _weak(value: Any) -> Any:
    if type(value) in _CONTAINERS:
        return _mapped(_weak, value)
    if isinstance(value, _CONSTANTS):
        return value
    if not isinstance(value, torch.Tensor) and not callable(value):
        return _GONE  # The script may have changed it since.
    try:
        return weakref.ref(value)
    except TypeError:
        return _GONE


def _strong(value: Any) -> Any:
    if type(value) in _CONTAINERS:
        return _mapped(_strong, value)
    if isinstance(value, weakref.ref):
        found = value()
        return _GONE if found is None else found
    return value


_CONTAINERS = (list, tuple, dict)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, dict):
        return {key: function(each) for key, each in value.items()}
    return type(value)(map(function, value))


def _has_gone(value: Any) -> bool:
    if type(value) in _CONTAINERS:
        return any(map(_has_gone, value.values() if isinstance(value, dict) else value))
    return value is _GONE


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


def version_of(tensor: Any) -> int:
    """Return how often a tensor was written to, as far as torch counts."""
    return 0 if tensor.is_inference() else int(tensor._version)


def no_tensor() -> None:
    """Return None, as a reference to a tensor that no longer exists does."""
