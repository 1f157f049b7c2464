"""Notice when functions of `torch.compile` begin and end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch

from nncdbg.engine.ops.aten.internals import (
    compiled_call_ends,
    compiled_call_functions,
    is_compiled_call,
    not_compiled,
)

Begin = Callable[[Callable[..., Any], Sequence[Any], Mapping[str, Any], FrameType], None]
End = Callable[[Callable[..., Any], Any], None]


_listeners: list[tuple[Begin, End]] = []
_running: dict[int, tuple[Callable[..., Any], list[End]]] = {}
"""The compiled functions that run now, by their frames, with the listeners to their ends."""


def on_compiled_call(begin: Begin, end: End) -> Callable[[], None]:
    """Call `begin` and `end` around each call of a compiled function; return how to give up.

    `begin` gets the function that was compiled, its arguments and the frame of the call, `end` the function
    and its result: None after an exception.
    """
    owner, *names = compiled_call_functions()
    if not _originals:
        for name, told in zip(names, (_begins, _ends), strict=True):
            original = _originals[name] = getattr(owner, name)
            setattr(owner, name, told(original))
    listener = begin, end
    _listeners.append(listener)

    def remove() -> None:
        if listener in _listeners:
            _listeners.remove(listener)
            _restore()

    return remove


_originals: dict[str, Any] = {}
"""The functions of torch that are replaced now, by their names."""


def _restore() -> None:
    """Put torch's own functions back if nobody listens, and no compiled function that began is to end."""
    if not _listeners and not _running:
        owner = compiled_call_functions()[0]
        for name, original in _originals.items():
            setattr(owner, name, original)
        _originals.clear()


def _begins(original: Callable[[], Any]) -> Any:
    @not_compiled
    def call() -> Any:
        frame = sys._getframe(1)
        if is_compiled_call(frame.f_code):
            given = frame.f_locals
            function, ends = given["fn"], list[End]()
            _running[id(frame)] = function, ends
            for begin, end in [*_listeners]:
                begin(function, given["args"], given["kwargs"], frame)
                ends.append(end)
        return original()

    return call


def _ends(original: Callable[[Any], Any]) -> Any:
    @not_compiled
    def call(callback: Any) -> Any:
        frame = sys._getframe(1)
        if id(frame) in _running and compiled_call_ends(frame):
            function, ends = _running.pop(id(frame))
            for end in reversed(ends):
                end(function, frame.f_locals.get("result"))
            _restore()
        return original(callback)

    return call


def compiled_in_place(module: torch.nn.Module) -> bool:
    """Return whether `module.compile()` was called: its hooks are part of the compiled code."""
    return module._compiled_call_impl is not None
