"""What runs inside of an operator that is implemented with operators: of another library, or of higher order.

Operators of other libraries may also compute without operators, with NumPy or in kernels of C++ and Triton.
The contents of tensors tell: they are the same from one operator to the next.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import count
from typing import TYPE_CHECKING, Any

import torch

from nncdbg.engine.ops.aten.arrays import host_array
from nncdbg.engine.values.checksum import checksum
from nncdbg.torch.storages import Key

if TYPE_CHECKING:
    from nncdbg.torch.recording import Recorder


class SeenContents:
    """Checksums of the memory of tensors after each operator inside of an operator."""

    def __init__(self) -> None:
        self._sums: dict[int, str] = {}
        self.changed = False
        """Whether memory changed without an operator."""

    def check(self, tensors: Iterable[tuple[Key, Any]]) -> None:
        """Compare the memory of tensors with that after the last operator that read, made or wrote it."""
        for key, tensor in tensors:
            if not self.changed and key[0] in self._sums:
                self.changed = self._sums[key[0]] != _checksum(tensor)

    def keep(self, tensors: Iterable[tuple[Key, Any]], written: Iterable[Key] = ()) -> None:
        """Keep the checksums of tensors that an operator read or made; `written` is what it wrote to."""
        for key in written:
            self._sums.pop(key[0], None)
        for key, tensor in tensors:
            if key[0] not in self._sums:
                self._sums[key[0]] = _checksum(tensor)


def _checksum(tensor: Any) -> str:
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    return checksum(host_array(memory))


def naming_functions(
    name: str,
    implementation: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    recorder: Recorder,
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments of a higher-order operator; its functions are modules while they run.

    The branch of a `torch.cond` is the module ``cond.true_fn``, the first call of the body of a loop is
    ``while_loop.body_fn``, and the next one ``while_loop.body_fn.1``.
    """
    parameters = inspect.signature(implementation).parameters

    def named(parameter: str, value: Any) -> Any:
        if not callable(value) or isinstance(value, torch.Tensor):
            return value
        return _entering(value, f"{name}.{parameter}", recorder)

    positional = [named(parameter, value) for parameter, value in zip(parameters, args, strict=False)]
    rest = args[len(positional) :]
    return (*positional, *rest), {parameter: named(parameter, each) for parameter, each in kwargs.items()}


def _entering(function: Callable[..., Any], name: str, recorder: Recorder) -> Callable[..., Any]:
    names = _numbered(name)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        own = next(names)
        recorder.enter_module(own)
        try:
            return function(*args, **kwargs)
        finally:
            recorder.leave_module(own)

    return call


def _numbered(name: str) -> Iterator[str]:
    yield name
    for number in count(1):
        yield f"{name}.{number}"
