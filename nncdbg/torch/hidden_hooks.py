"""Leave hooks of nncdbg out of modules that are copied, pickled, or compiled."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from types import FrameType
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from nncdbg.engine.ops.aten.internals import compiles_body
from nncdbg.torch.compiled_calls import on_compiled_call

_NAME = "__reduce_ex__"

_hidden: list[Sequence[RemovableHandle]] = []
"""The hooks of each block that lasts now."""


@contextmanager
def hidden_hooks(hooks: Sequence[RemovableHandle]) -> Iterator[None]:
    """Leave these hooks out of a module that is copied or pickled in the block; there may be more later.

    Blocks may overlap: those of the steps of a recording, and that of a watch.
    """
    if not _hidden:
        _replace()
    _hidden.append(hooks)
    try:
        yield
    finally:
        _hidden[:] = [each for each in _hidden if each is not hooks]
        if not _hidden:
            delattr(torch.nn.Module, _NAME)


@contextmanager
def untraced_hooks(hooks: Sequence[RemovableHandle], *, only_bodies: bool = False) -> Iterator[None]:
    """Take these hooks away while compiled functions run.

    The compiler would write them into the conditions of its code, which would be compiled again without them,
    and for each step, whose hooks have new numbers.  With `only_bodies`, they are taken away only for
    functions of higher-order operators, as no others are compiled.
    """
    running = 0
    taken: list[tuple[Any, int, Any, bool]] = []

    def take(function: Any, args: Any, kwargs: Any, frame: FrameType) -> bool:
        nonlocal running
        if only_bodies and not compiles_body(frame):
            return False
        running += 1
        for having, number in _entries(hooks) if running == 1 else ():
            if number in having:
                first = next(iter(having)) == number
                taken.append((having, number, having.pop(number), first))
        return True

    def ended(*_: Any) -> None:
        nonlocal running
        running -= 1
        if not running:
            put_back()

    def put_back() -> None:
        while taken:
            having, number, hook, first = taken.pop()
            having[number] = hook
            if first:
                having.move_to_end(number, last=False)

    end = on_compiled_call(take, ended, begun=True)
    try:
        yield
    finally:
        end()
        put_back()


def _entries(hooks: Iterable[RemovableHandle]) -> Iterator[tuple[Any, int]]:
    """Yield the dictionaries that have hooks, and the number of the hook in it."""
    for each in hooks:
        for reference in (each.hooks_dict_ref, *each.extra_dict_ref):
            if (having := reference()) is not None:
                yield having, each.id


def _replace() -> None:
    original: Any = torch.nn.Module.__reduce_ex__

    def __reduce_ex__(module: torch.nn.Module, protocol: Any) -> Any:
        reduced = original(module, protocol)
        if not isinstance(reduced, tuple) or len(reduced) < 3:
            return reduced
        return *reduced[:2], _without_hidden(module, reduced[2]), *reduced[3:]

    setattr(torch.nn.Module, _NAME, __reduce_ex__)


def _without_hidden(module: torch.nn.Module, state: Any) -> Any:
    """Return the attributes of a module without the hidden hooks."""
    if not isinstance(state, dict):
        return state
    hidden: dict[int, set[int]] = {}
    for having, number in _entries(chain.from_iterable(_hidden)):
        hidden.setdefault(id(having), set()).add(number)
    return {
        name: OrderedDict((key, hook) for key, hook in value.items() if key not in hidden[id(value)])
        if id(value) in hidden
        else value
        for name, value in state.items()
    }
