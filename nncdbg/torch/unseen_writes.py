"""Hear of functions by which memory may change without an operator: those of storages, and NumPy's views."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch

from nncdbg.engine.ops.aten.internals import unseen
from nncdbg.torch.warning_places import warning_at_caller

_OF_STORAGES = "__setitem__", "copy_", "fill_", "resize_"
_OF_TENSORS = "__dlpack__", "numpy"


@contextmanager
def before_unseen_writes(keep: Callable[[Any], None]) -> Iterator[None]:
    """Call `keep` with the storage before each of these functions in the block."""

    @unseen
    def keep_memory(tensor: Any) -> None:
        if tensor.layout is torch.strided and not tensor.is_nested:
            keep(tensor.untyped_storage())

    with ExitStack() as ended:
        for name in _OF_STORAGES:
            _replace(torch.UntypedStorage, name, unseen(keep), ended)
        for name in _OF_TENSORS:
            _replace(torch.Tensor, name, keep_memory, ended)
        yield


@contextmanager
def around_waits(block: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Enter `block()` around each wait for a collective, which may run operators, while this is entered."""
    if not torch.distributed.is_available():
        yield
        return
    work: Any = torch.distributed.Work
    original = work.wait

    @wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        with block():
            return original(self, *args, **kwargs)

    work.wait = wait
    try:
        yield
    finally:
        work.wait = original


def _replace(owner: type, name: str, keep: Callable[[Any], None], ended: ExitStack) -> None:
    original, own = getattr(owner, name), vars(owner).get(name)

    @warning_at_caller
    @wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        keep(self)
        return original(self, *args, **kwargs)

    setattr(owner, name, call)
    if own is None:
        ended.callback(delattr, owner, name)
    else:
        ended.callback(setattr, owner, name, own)
