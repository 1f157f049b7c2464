"""Leave hooks of nncdbg out of modules that are copied or pickled."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

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
    for each in chain.from_iterable(_hidden):
        for reference in (each.hooks_dict_ref, *each.extra_dict_ref):
            if (having := reference()) is not None:
                hidden.setdefault(id(having), set()).add(each.id)
    return {
        name: OrderedDict((key, hook) for key, hook in value.items() if key not in hidden[id(value)])
        if id(value) in hidden
        else value
        for name, value in state.items()
    }
