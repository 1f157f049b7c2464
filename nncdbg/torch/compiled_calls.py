"""Notice when functions of `torch.compile` begin and end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch

from nncdbg.engine.ops.aten.internals import compiled_frame, compiler_switch, not_compiled

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
    owner, name = compiler_switch()
    if not hasattr(getattr(owner, name), "original"):
        setattr(owner, name, _told(getattr(owner, name)))
    listener = begin, end
    _listeners.append(listener)

    def remove() -> None:
        if listener in _listeners:
            _listeners.remove(listener)
            _restore()

    return remove


def _restore() -> None:
    """Put torch's own function back if nobody listens, and no compiled function that began is to end."""
    owner, name = compiler_switch()
    original = getattr(getattr(owner, name), "original", None)
    if original is not None and not _listeners and not _running:
        setattr(owner, name, original)


def _told(original: Callable[[Any], Any]) -> Any:
    """Return a function in place of the one that turns the compiler on and off."""

    @not_compiled
    def switch(callback: Any) -> Any:
        frame = sys._getframe(1)
        call = compiled_frame(frame)
        if call is None:
            return original(callback)
        if id(frame) not in _running:
            function, ends = call["fn"], []
            _running[id(frame)] = function, ends
            for begin, end in [*_listeners]:
                begin(function, call["args"], call["kwargs"], frame)
                ends.append(end)
            return original(callback)
        function, ends = _running.pop(id(frame))
        before = original(callback)
        for end in reversed(ends):
            end(function, call.get("result"))
        _restore()
        return before

    switch.original = original  # type: ignore[attr-defined]
    return switch


def compiled_in_place(module: torch.nn.Module) -> bool:
    """Return whether `module.compile()` was called: its hooks are part of the compiled code."""
    return module._compiled_call_impl is not None
