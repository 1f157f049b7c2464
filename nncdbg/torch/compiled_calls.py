"""Notice when functions of `torch.compile` begin and end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import FrameType, FunctionType, MethodType
from typing import Any

import torch

from nncdbg.engine.ops.aten.internals import (
    CompiledResult,
    compiled_call_ends,
    compiled_call_functions,
    is_compiled_call,
    not_compiled,
    when_compiler_is_imported,
)

Begin = Callable[[Callable[..., Any], Sequence[Any], Mapping[str, Any], FrameType], bool | None]
End = Callable[[Callable[..., Any], Any], None]


_listeners: list[tuple[Begin, End]] = []


@dataclass(slots=True)
class _Call:
    """A call of a compiled function that runs now, with the listeners to its end."""

    frame: FrameType
    result: CompiledResult
    ends: list[End] = field(default_factory=list)
    uses: int = 0
    """How often it used the function at its end so far."""

    def tell(self, begin: Begin, end: End) -> None:
        given = self.frame.f_locals
        if begin(self.result.function, given["args"], given["kwargs"], self.frame) is not False:
            self.ends.append(end)


_running: dict[int, _Call] = {}
"""By the number of the frame."""


def on_compiled_call(begin: Begin, end: End, *, begun: bool = False) -> Callable[[], None]:
    """Call `begin` and `end` around each call of a compiled function; return how to give up.

    `begin` gets the function that was compiled, its arguments and the frame of the call, `end` the function
    and its result: None after an exception.  If `begin` returns False, `end` is not called.  With `begun`,
    calls that run now count too.
    """
    listener = begin, end
    _listeners.append(listener)
    if not _waiting:
        _waiting.append(when_compiler_is_imported(_replace))
    if begun:
        _forget_ended()
        for call in _running.values():
            call.tell(*listener)

    def remove() -> None:
        if listener in _listeners:
            _listeners.remove(listener)
            _restore()

    return remove


def _forget_ended() -> None:
    """Forget the calls whose frame has ended without the use of the function at its end."""
    # A variable that is left with the frame of this function would keep it and all of its callers.
    frames: set[int] = set()
    tops = sys._current_frames()
    while tops:
        frame: FrameType | None = tops.popitem()[1]
        while frame is not None:
            frames.add(id(frame))
            frame = frame.f_back
    for number in [*_running]:
        if number not in frames:
            del _running[number]


_originals: dict[str, Any] = {}
"""The functions of torch that are replaced now, by their names."""

_waiting: list[Callable[[], None]] = []
"""The function that ends the wait for the compiler, if there are listeners."""


def _replace() -> None:
    owner, *names = compiled_call_functions()
    replacements: tuple[Callable[[Any], Any], ...] = _begins, _ends
    for name, told in zip(names, replacements, strict=True):
        original = _originals[name] = getattr(owner, name)
        setattr(owner, name, told(original))


def _restore() -> None:
    """Put torch's own functions back when no listener is left and no compiled function runs."""
    if _listeners or _running:
        return
    while _waiting:
        _waiting.pop()()
    if _originals:
        owner = compiled_call_functions()[0]
        for name, original in _originals.items():
            setattr(owner, name, original)
        _originals.clear()


def _begins(original: Callable[[], Any]) -> Any:
    @not_compiled
    def call() -> Any:
        frame = sys._getframe(1)
        if is_compiled_call(frame.f_code):
            listeners = [*_listeners]
            running = _running[id(frame)] = _Call(frame, CompiledResult(frame))
            for listener in listeners:
                running.tell(*listener)
        return original()

    return call


def _ends(original: Callable[[Any], Any]) -> Any:
    @not_compiled
    def call(callback: Any) -> Any:
        frame = sys._getframe(1)
        running = _running.get(id(frame))
        if running is not None and compiled_call_ends(frame, running.uses):
            del _running[id(frame)]
            function, result = running.result.function, running.result.take()
            for end in reversed(running.ends):
                end(function, result)
            _restore()
        elif running is not None:
            running.uses += 1
        return original(callback)

    return call


def modules_in(function: Any, depth: int = 4) -> Iterator[torch.nn.Module]:
    """Yield the modules that a function reads: its own object, its free and global variables and defaults.

    Functions among these are followed, up to `depth` of them.
    """
    if isinstance(function, torch.nn.Module):
        yield function
        return
    found = [getattr(function, name, None) for name in ("__self__", "__wrapped__", "func")]
    found += getattr(function, "__defaults__", None) or ()
    found += (getattr(function, "__kwdefaults__", None) or {}).values()
    found += getattr(function, "args", None) or ()
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # The variable has no value yet.
            found.append(cell.cell_contents)
    code = getattr(function, "__code__", None)
    if code is not None:
        variables = getattr(function, "__globals__", {})
        found += [variables[name] for name in code.co_names if name in variables]
    for each in found:
        if isinstance(each, torch.nn.Module) or (depth and isinstance(each, _FUNCTIONS)):
            yield from modules_in(each, depth - 1)


_FUNCTIONS = (FunctionType, MethodType, partial)


def compiled_in_place(module: torch.nn.Module) -> bool:
    """Return whether `module.compile()` was called: its hooks are part of the compiled code."""
    return module._compiled_call_impl is not None
