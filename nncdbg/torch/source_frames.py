"""Follow the user's frames while a step is recorded: calls, executions of lines, and the names of tensors."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import CO_OPTIMIZED
from types import CodeType, FrameType
from typing import Any, TypeAlias

import torch

from nncdbg.torch.sharded_tensors import PLAIN
from nncdbg.torch.source_lines import Lines, user_frame, user_frames
from nncdbg.torch.storages import Key

Path: TypeAlias = "tuple[str, ...]"
"""A variable, and the attributes that are read from it."""

NO_BACKWARD = -1
"""In place of the number of a backward pass."""

_UNBOUND = object()

_MOST = 8
"""The most elements of a container whose tensors have names."""

_READS_LOCALS = frozenset(("locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"))
"""Functions that may return or use the dictionary of a frame's locals."""

_COPIES_LOCALS = sys.version_info < (3, 13)
"""Whether reading the locals of a function makes a dictionary that holds them until the next reading."""


class Call:
    """A call of a function of the user; of a line alone if its frame did not run when it was recorded."""

    __slots__ = ("caller", "file", "function", "held")

    def __init__(self, file: str, function: str, caller: Visit | None) -> None:
        self.file = file
        self.function = function
        self.caller = caller
        self.held: dict[str, Key] = {}
        """The memory of the tensor that each name holds."""


class Visit:
    """One execution of a line of a call."""

    __slots__ = ("call", "line")

    def __init__(self, call: Call, line: int) -> None:
        self.call = call
        self.line = line


class Binding:
    """From before event number `event` on, a name of a call holds the memory `key`; None for no tensor."""

    __slots__ = ("call", "event", "key", "name")

    def __init__(self, event: int, call: Call, name: str, key: Key | None) -> None:
        self.event = event
        self.call = call
        self.name = name
        self.key = key


class _Running:
    """A frame as it was at the last operator."""

    __slots__ = ("code", "content", "entry", "identity", "instruction", "visit")

    def __init__(
        self,
        identity: int,
        code: CodeType,
        instruction: int,
        content: tuple[int, ...],
        entry: int,
        visit: Visit,
    ) -> None:
        self.identity = identity
        self.code = code
        self.instruction = instruction
        self.content = content
        self.entry = entry
        self.visit = visit


@dataclass(frozen=True)
class RecordedSource:
    """The names of the user that were bound, and the number of the outermost calls that began before.

    The innermost call at the beginning of the recording is not one of these.
    """

    bindings: Sequence[Binding] = ()
    callers: int = 0


class SourceFrames:
    """The frames of the user at the operators of a recording.

    `key_of` returns the memory of a tensor, None without one, and keeps its number from being used again.
    """

    def __init__(self, key_of: Callable[[Any], Key | None]) -> None:
        self.bindings: list[Binding] = []
        self.entries: dict[int, int] = {}
        """The modules that run now by identity, to the number of their latest call."""
        self._key_of = key_of
        self.callers = 0
        """The number of outermost frames that called the one in which the recording began."""
        self.moved = True
        """Whether a call may have begun since the last operator, although the lines are the same."""
        self._running: list[_Running] = []
        """Outermost first."""
        self._backward = NO_BACKWARD
        """The number of the backward pass of the last operator."""
        self._rest: tuple[Lines, Visit | None] = (), None
        """Lines of which only the places are known, and the visit of the innermost one."""

    def begin(self, frame: FrameType) -> None:
        """Begin a recording in the innermost frame of the user."""
        self.callers = max(len(user_frames(frame)[0]) - 1, 0)

    def at(self, frame: FrameType, event: int, backward: int) -> Visit | None:
        """Return the visit of the innermost frame of the user; `event` is the number of the next event.

        Names that hold another tensor than at the last operator are bound from this event on.  `backward` is
        the number of the backward pass that runs, or `NO_BACKWARD`.
        """
        same_pass, self._backward = backward == self._backward, backward
        if self._running and same_pass and not self.moved:
            inner = user_frame(frame)
            now = self._running[-1]
            if inner is not None and now.identity == id(inner) and now.code is inner.f_code:
                here = inner.f_lasti
                if inner.f_lineno == now.visit.line and (
                    here > now.instruction
                    or (here == now.instruction and backward != NO_BACKWARD)
                    or (here == now.instruction and _content(inner)[0] == now.content)
                ):
                    now.instruction = here
                    return now.visit
        self.moved = False
        return self._look(*user_frames(frame), event)

    def drop(self, event: int) -> None:
        """Let names that were bound since an event be bound from it on: it has replaced the later ones."""
        for each in reversed(self.bindings):
            if each.event <= event:
                break
            each.event = event

    def _look(self, frames: Sequence[FrameType], rest: Lines, event: int) -> Visit | None:
        if rest != self._rest[0]:
            self._rest = rest, _visit_of(rest)
            self._running.clear()
        caller = self._rest[1]
        before, running = self._running, []
        same = True
        """Whether the callers are as they were, so that the calls that they made still run."""
        for depth, frame in enumerate(reversed(frames)):
            code, instruction = frame.f_code, frame.f_lasti
            content, values = _content(frame)
            entry = self.entries.get(id(values.get("self")), 0)
            last = before[depth] if same and depth < len(before) else None
            if last is not None and (
                last.identity != id(frame) or last.code is not code or last.entry != entry
            ):
                last = None
            same = last is not None and instruction == last.instruction and content == last.content
            if last is None:
                visit = Visit(Call(code.co_filename, code.co_qualname, caller), frame.f_lineno)
            else:
                visit = last.visit
                ahead = same or instruction > last.instruction
                if visit.line != frame.f_lineno or not ahead:
                    visit = Visit(visit.call, frame.f_lineno)
            running.append(_Running(id(frame), code, instruction, content, entry, visit))
            self._bind(visit.call, frame, values, event, variables=not same)
            caller = visit
        self._running = running
        return caller

    def _bind(
        self, call: Call, frame: FrameType, values: dict[str, Any], event: int, *, variables: bool
    ) -> None:
        """Bind the names of a call that hold other tensors now; without `variables`, only its paths."""
        names = _names_of(frame.f_code)
        found = _path_values(frame, names.paths, values)
        if variables:
            found = {**values, **found}
        elif not found:
            return
        held, key_of = call.held, self._key_of
        now: dict[str, Key] = {}
        for name, tensor in _tensors(found):
            key = key_of(tensor)
            if key is not None:
                now[name] = key
                if held.get(name) != key:
                    self.bindings.append(Binding(event, call, name, key))
        for name in held.keys() - now.keys():
            if variables or name.partition("[")[0] in found:
                self.bindings.append(Binding(event, call, name, None))
                del held[name]
        held.update(now)


def _visit_of(lines: Lines) -> Visit | None:
    """Return the visit of the first of some lines, whose calls have no frames."""
    visit = None
    for file, line in reversed(lines):
        visit = Visit(Call(file, "", visit), line)
    return visit


def _tensors(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield tensors with their names; of small containers, the elements."""
    for name, value in values.items():
        kind = type(value)  # `__class__` may run code of the user.
        if kind in PLAIN:
            yield name, value
        elif (kind is list or kind is tuple) and 0 < len(value) <= _MOST:
            for position, each in enumerate(value):
                if type(each) in PLAIN:
                    yield f"{name}[{position}]", each
        elif kind is dict and 0 < len(value) <= _MOST:
            for key, each in value.items():
                if type(each) in PLAIN and type(key) in (str, int):
                    yield f"{name}[{_quoted(key)}]", each


def _quoted(key: str | int) -> str:
    return repr(key) if isinstance(key, int) else '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _content(frame: FrameType) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Return the identities of what the own variables of a frame hold, and the values of all its variables.

    Only the frame itself changes its own variables.  Those that hold nothing are left out of the values.
    """
    names = _names_of(frame.f_code)
    found = frame.f_locals
    content = tuple([id(found.get(name, _UNBOUND)) for name in names.own])
    if names.is_function:
        values = dict(found)
        if names.clears and sys.gettrace() is None and sys.getrefcount(found) <= _REFERENCES:
            found.clear()  # Otherwise tensors would live longer than without a recording.
    else:
        values = {name: found[name] for name in names.variables if name in found}
    return content, values


def _path_values(
    frame: FrameType, paths: Sequence[tuple[Path, str]], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what paths of attributes and global variables hold, by the text of the path."""
    held = {}
    for path, spelled in paths:
        root = path[0]
        value = values[root] if root in values else frame.f_globals.get(root, _UNBOUND)
        for attribute in path[1:]:
            value = _attribute(value, attribute)
        if value is not _UNBOUND:
            held[spelled] = value
    return held


_REFERENCES = 3
"""The references to the dictionary of locals if only the frame and `_content` hold it."""


def _attribute(value: Any, name: str) -> Any:
    """Return what an object itself has by this name; no code of its class runs."""
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return _UNBOUND
    if name in own:
        return own[name]
    if issubclass(type(value), torch.nn.Module):
        for kind in ("_parameters", "_buffers", "_modules"):
            parts = own.get(kind)
            if parts is not None and name in parts:
                return parts[name]
    return _UNBOUND


# -- names of code -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _CodeNames:
    """The names of code: its variables, those that only its own frame changes, and paths of attributes.

    `clears`: whether the dictionary of its locals is a copy that nothing else uses.
    """

    variables: tuple[str, ...]
    own: tuple[str, ...]
    paths: tuple[tuple[Path, str], ...]
    is_function: bool
    clears: bool


@cache
def _names_of(code: CodeType) -> _CodeNames:
    """Return the names of code: all variables of a function; of other code, those that it uses."""
    optimized = bool(code.co_flags & CO_OPTIMIZED)
    if optimized:
        variables = dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars))
    else:
        used = (each for each in dis.get_instructions(code) if each.opname in _USES_NAMES)
        variables = dict.fromkeys(str(each.argval) for each in used)
    changed = {*code.co_freevars, *_changed_inside(code)}
    return _CodeNames(
        tuple(variables),
        tuple(name for name in variables if name not in changed),
        tuple((path, ".".join(path)) for path in dict.fromkeys(_paths(code))),
        optimized,
        _COPIES_LOCALS and optimized and not _READS_LOCALS & {*code.co_names},
    )


_USES_NAMES = ("LOAD_NAME", "STORE_NAME", "LOAD_GLOBAL", "STORE_GLOBAL")


def _changed_inside(code: CodeType) -> Iterator[str]:
    """Yield the names that functions inside of code rebind for it."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            for each in dis.get_instructions(inner):
                if each.opname in ("STORE_DEREF", "STORE_GLOBAL", "DELETE_DEREF", "DELETE_GLOBAL"):
                    yield str(each.argval)
            yield from _changed_inside(inner)


def _paths(code: CodeType) -> Iterator[Path]:
    """Yield the global variables and the paths of attributes that code reads as values, or writes."""
    path: Path = ()
    for each in dis.get_instructions(code):
        name, value = each.opname, each.argval
        is_call = "NULL" in each.argrepr
        if name.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_NAME", "STORE_FAST_LOAD_FAST")):
            path = (str(value[-1] if isinstance(value, tuple) else value),)
        elif name == "LOAD_GLOBAL" and not is_call:
            path = (str(value),)
            yield path
        elif (name == "LOAD_ATTR" and not is_call and path) or (name == "STORE_ATTR" and path):
            path = (*path, str(value))
            yield path
        elif name != "CACHE":
            path = ()
