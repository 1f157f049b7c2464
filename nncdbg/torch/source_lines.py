"""Source lines of the user's code that runs now."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import CodeType, FrameType
from typing import Any, TypeAlias, TypeVar

import torch

from nncdbg.engine.ops.aten.internals import (
    GENERATED,
    compiles_body,
    is_compiled_call,
    module_call,
    traced_places,
)
from nncdbg.presentation.source_files import short_path
from nncdbg.torch import guard_kernels

Lines: TypeAlias = "tuple[tuple[str, int], ...]"
"""Source lines of the user, innermost first."""

Places: TypeAlias = "tuple[tuple[CodeType | str, int], ...]"
"""The frames of the user, innermost first: code and its instruction, or only file and line."""

_DEEPEST = 4
"""The most lines of the user that an event keeps."""

_DEEPEST_OF_CALL = 16
"""The same for a call of a step that may run again."""

_LIBRARY, _USER, _RERUN, _COMPILED, _OPTIMIZER, _GENERATED = range(6)
"""Kinds of code: of a library, of the user, `call_again`, the call of what torch.compile returned, of torch's
optimizers, and generated code of a graph that torch traced."""

_KINDS: dict[int, tuple[CodeType, int]] = {}
"""Code and kind by identity: the hash of a code is computed from its content each time."""

_HANDLERS = ("__torch_dispatch__", "__torch_function__")
"""The user's functions that call an operator on behalf of the line that needs it."""

_compiled_calls = 0
"""How often `user_lines` found a call of a function of torch.compile on the stack."""


def call_again(
    call: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    lines: Lines,
    outer: object = None,
) -> Any:
    """Call a function that the user called at `lines`: what is recorded inside has them as outer lines.

    `outer` is what is known of the frames of these lines (`source_frames.OuterFrames`).
    """
    return call(*args, **kwargs)


def compiled_calls() -> int:
    """Return a number that grows when operators run inside functions that torch.compile returned."""
    return _compiled_calls


def user_lines(frame: FrameType | None, most: int = _DEEPEST, within: CodeType | None = None) -> Lines:
    """Return the innermost lines outside of torch, nncdbg and the standard library, at most `most`.

    With `within`, only lines that this code has called.
    """
    global _compiled_calls
    library = guard_kernels.used
    if library is not None and within is None:
        lines: Lines | None = library.user_lines(frame, most, kind_of_frame)
        if lines is not None:
            return lines
    found: list[tuple[str, int]] = []
    known = _KINDS
    while frame is not None and len(found) < most:
        code = frame.f_code
        if code is within:
            break
        entry = known.get(id(code)) or _known(code)
        kind = entry[1]
        if kind == _USER:
            found.append((code.co_filename, frame.f_lineno))
        elif kind == _RERUN:
            found.extend(frame.f_locals["lines"][: most - len(found)])
            break
        elif kind == _COMPILED:
            _compiled_calls += not compiles_body(frame)
        elif kind == _GENERATED:
            found += [
                place
                for place in traced_places(frame)
                if _kind_of_file(place[0]) == _USER and place not in found
            ]
        frame = frame.f_back
    return tuple(found[:most])


def user_places(frame: FrameType | None) -> Places:
    """Return the innermost frames that `user_lines` returns the lines of."""
    library = guard_kernels.used
    if library is not None:
        places: Places | None = library.user_places(frame, _DEEPEST_OF_CALL, kind_of_frame)
        if places is not None:
            return places
    found: list[tuple[CodeType | str, int]] = []
    while frame is not None and len(found) < _DEEPEST_OF_CALL:
        kind = (_KINDS.get(id(frame.f_code)) or _known(frame.f_code))[1]
        if kind == _USER:
            found.append((frame.f_code, frame.f_lasti))
        elif kind != _LIBRARY and kind != _OPTIMIZER:
            return (*found, *user_lines(frame, _DEEPEST_OF_CALL - len(found)))
        frame = frame.f_back
    return tuple(found)


def lines_of(places: Places) -> Lines:
    """Return the lines of frames, innermost first."""
    return tuple(
        line
        for code, at in places
        for line in (((code, at),) if isinstance(code, str) else line_at(code, at))
    )


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the user's code; None if only lines of it are known, or none runs."""
    library = guard_kernels.used
    if library is not None:
        found: FrameType | None | bool = library.user_frame(frame, kind_of_frame)
        if not isinstance(found, bool):
            return found
    while frame is not None:
        code = frame.f_code
        kind = (_KINDS.get(id(code)) or _known(code))[1]
        if kind == _USER:
            return frame
        if kind == _RERUN:
            return None
        frame = frame.f_back
    return None


def user_frames(frame: FrameType | None) -> tuple[list[FrameType], object]:
    """Return the frames of the user's code, innermost first, and what called the outermost one.

    In a second run of what the user called, that is `outer` of `call_again`, or its lines; otherwise ().
    """
    found = []
    while (inner := user_frame(frame)) is not None:
        found.append(inner)
        frame = inner.f_back
    while frame is not None:
        if frame.f_code is call_again.__code__:
            again = frame.f_locals
            return found, again["outer"] or again["lines"]
        frame = frame.f_back
    return found, ()


def place_of(lines: Lines) -> str:
    """Return the innermost of some lines as ``train.py:42``; empty without a line."""
    return f"{short_path(lines[0][0])}:{lines[0][1]}" if lines else ""


def is_user_code(code: CodeType) -> bool:
    """Return whether code is outside of torch, nncdbg and the standard library.  It is kept from then on."""
    return _known(code)[1] == _USER


def kind_of_frame(code: CodeType) -> int:
    """Return what a frame with this code, which is kept from then on, is to `user_lines`.

    0: it is passed over.  1: its line is one of the user.  2: `user_lines` does something else.
    """
    kind = _known(code)[1]
    return 1 if kind == _USER else 2 if kind in (_RERUN, _COMPILED, _GENERATED) else 0


def is_optimizer_code(code: CodeType) -> bool:
    """Return whether code is of one of torch's own optimizers.  It is kept from then on."""
    return (_KINDS.get(id(code)) or _known(code))[1] == _OPTIMIZER


def line_at(code: CodeType, position: int) -> Lines:
    """Return the line of an instruction, by its position in bytes."""
    lines = (line for start, end, line in code.co_lines() if start <= position < end and line is not None)
    return tuple((code.co_filename, line) for line in lines)


def calling_modules(
    frame: FrameType | None, within: CodeType | None = None, *, traced: bool = False
) -> Iterator[torch.nn.Module]:
    """Yield the modules whose call runs now, innermost first; those that `within` has called, if given.

    Without `traced`, graphs that the compiler traced, such as the body of a `torch.cond`, are left out.
    """
    while frame is not None and frame.f_code is not within:
        if frame.f_code is module_call:
            module = frame.f_locals["self"]
            if traced or type(module).__name__ != torch.fx.GraphModule.__name__:
                yield module
        frame = frame.f_back


@cache
def names_allocation(code: CodeType) -> bool:
    """Return whether Python code itself allocates memory without writing it, as with `torch.empty`."""
    return any("empty" in name for name in code.co_names)


def _known(code: CodeType) -> tuple[CodeType, int]:
    """Return the entry of code in `_KINDS`, which keeps its identity from being used again."""
    if code is call_again.__code__:
        kind = _RERUN
    elif is_compiled_call(code):
        kind = _COMPILED
    else:
        kind = _LIBRARY if code.co_name in _HANDLERS else _kind_of_file(code.co_filename)
    return _KINDS.setdefault(id(code), (code, kind))


def _kind_of_file(file: str) -> int:
    """Return the kind of the code in a file, as far as the file says it."""
    if file.startswith(GENERATED):
        return _GENERATED
    if file.startswith(_OPTIMIZERS):
        return _OPTIMIZER
    library = file.startswith(_LIBRARIES) or "/site-packages/" in file or "/dist-packages/" in file
    # A command may be a link to the program that Python's package manager wrote, or be in a linked folder.
    return _LIBRARY if library or os.path.realpath(file).startswith(_PROGRAMS) else _USER


_LIBRARIES = (
    "<frozen",
    f"{sysconfig.get_path('stdlib')}/",
    f"{sysconfig.get_path('scripts')}/",
    f"{os.path.dirname(os.path.dirname(__file__))}/",
    f"{os.path.dirname(torch.__file__)}/",
)

_PROGRAMS = f"{os.path.realpath(sysconfig.get_path('scripts'))}/"
"""The folder of programs such as `nncdbg`."""

_OPTIMIZERS = f"{os.path.dirname(torch.optim.__file__)}/"
"""The folder of torch's own optimizers."""


# -- lines of warnings ---------------------------------------------------------------------

Function = TypeVar("Function", bound=Callable[..., Any])

_SKIPPED = " (importlib _bootstrap)"
"""Python skips frames with these two words in the name of their file when it counts `stacklevel`."""


def warning_at_caller(function: Function) -> Function:
    """Mark a function that only passes a call on: a warning with a `stacklevel` does not count its frame.

    The place of a warning also decides if the warning is shown again, so it cannot be corrected afterwards.
    """
    changed: Any = function
    changed.__code__ = _without_place(changed.__code__)
    return function


@cache
def _without_place(code: CodeType) -> CodeType:
    """Return code whose file Python skips; one object for each code, as callers keep it by identity."""
    return code.replace(co_filename=code.co_filename + _SKIPPED)
