"""Follow the user's frames while a step is recorded: calls, executions of lines, names of tensors."""

from __future__ import annotations

import dis
import linecache
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_OPTIMIZED
from types import CodeType, FrameType, MemberDescriptorType, ModuleType
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

_RESUMES = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
"""Code whose frame may run for another caller than before."""

_COPIES_LOCALS = sys.version_info < (3, 13)
"""Whether reading the locals of a function makes a dictionary that holds them until the next reading."""


class Call:
    """A call of a function of the user; of a line alone if its frame did not run when it was recorded.

    The frame of a call has it as its `f_trace`, so that another call is not taken for it.
    """

    __slots__ = ("caller", "content", "file", "function", "held", "instruction", "recording", "visit")

    def __init__(self, file: str, function: str, caller: Visit | None, recording: object = None) -> None:
        self.file = file
        self.function = function
        self.caller = caller
        self.recording = recording
        self.held: dict[str, Key] = {}
        """The memory of the tensor that each name holds."""
        self.visit: Visit | None = None
        """The latest execution of a line."""
        self.instruction = -1
        """The instruction that ran the last operator, in the frame or in what it called."""
        self.content: tuple[int, ...] = ()
        """The identities of the frame's own variables at that operator."""

    def move(self, frame: FrameType, content: tuple[int, ...]) -> None:
        """Enter where the frame is now: in a new execution of a line, or in the latest one."""
        line, here = frame.f_lineno, frame.f_lasti
        ahead = here > self.instruction or (here == self.instruction and content == self.content)
        if self.visit is None or self.visit.line != line or not ahead:
            self.visit = Visit(self, line)
        self.instruction, self.content = here, content

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Do nothing, if a debugger begins to trace while the frame runs."""


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


class SourceFrames:
    """The frames of the user at the operators of a recording.

    `key_of` returns the memory of a tensor, None without one, and keeps its number from being used again.
    """

    def __init__(self, key_of: Callable[[Any], Key | None]) -> None:
        self.bindings: list[Binding] = []
        self._key_of = key_of
        self.callers = 0
        """The number of outermost frames that called the one in which the recording began."""
        self._recording = object()
        """In the calls of this recording."""
        self._inner: Call | None = None
        """The innermost call at the last operator, None for the call of a generator or coroutine."""
        self._traced: dict[int, Call] = {}
        """The calls at the last operator whose frames a debugger traces, by the identity of the frame."""
        self._files: set[str] = set()
        """The files of the calls: Python learns from where it reads them, such as an archive."""
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
        call = self._inner
        if same_pass and call is not None:
            inner = user_frame(frame)
            if inner is not None and _is_marked(inner, call):
                visit, here = call.visit, inner.f_lasti
                if (
                    visit is not None
                    and inner.f_lineno == visit.line
                    and (
                        here > call.instruction
                        or (here == call.instruction and backward != NO_BACKWARD)
                        or (here == call.instruction and _values(inner, only_own=True)[1] == call.content)
                    )
                ):
                    call.instruction = here
                    return visit
        return self._enter(*user_frames(frame), event)

    def close(self, frame: FrameType) -> None:
        """Take the calls off the frames of the user that still run."""
        for each in user_frames(frame)[0]:
            if self._is_own(each.f_trace):
                each.f_trace = None

    def drop(self, event: int) -> None:
        """Let names that were bound since an event be bound from it on: it has replaced the later ones."""
        for each in reversed(self.bindings):
            if each.event <= event:
                break
            each.event = event

    def _enter(self, frames: Sequence[FrameType], rest: Lines, event: int) -> Visit | None:
        """Enter where all frames are now, and return the visit of the innermost one."""
        if rest != self._rest[0]:
            self._rest = rest, _visit_of(rest)
        caller = self._rest[1]
        calls = [self._call_of(frame) for frame in frames]
        self._traced.clear()
        self._inner = None
        for depth in range(len(frames) - 1, -1, -1):
            frame, call = frames[depth], calls[depth]
            resumes = frame.f_code.co_flags & _RESUMES
            values, content = _values(frame)
            if call is None or call.caller is not caller:
                code = frame.f_code
                if code.co_filename not in self._files:
                    self._files.add(code.co_filename)
                    linecache.lazycache(code.co_filename, frame.f_globals)
                call = Call(code.co_filename, code.co_qualname, caller, self._recording)
                calls[depth] = call
                if frame.f_trace is None or self._is_own(frame.f_trace):
                    frame.f_trace = call
            if not _is_marked(frame, call):
                self._traced[id(frame)] = call
            inner = calls[depth - 1] if depth else None
            if inner is None or not self._waits(call, inner, frames[depth - 1]):
                call.move(frame, content)
            self._bind(call, values, event)
            caller = call.visit
            self._inner = None if resumes else call
        return caller

    def _is_own(self, trace: object) -> bool:
        """Return whether the trace function of a frame is a call of this recording."""
        return type(trace) is Call and trace.recording is self._recording

    def _call_of(self, frame: FrameType) -> Call | None:
        """Return the call of a frame; None if it has begun since the last operator."""
        trace: object = frame.f_trace
        if type(trace) is Call and trace.recording is self._recording:
            return trace
        call = None if trace is None else self._traced.get(id(frame))
        code = frame.f_code
        return (
            call
            if call is not None and (call.file, call.function) == (code.co_filename, code.co_qualname)
            else None
        )

    def _waits(self, call: Call, inner: Call, frame: FrameType) -> bool:
        """Return whether a call has not moved since the last operator, as `inner` in its frame still runs."""
        return (
            _is_marked(frame, inner)
            and not frame.f_code.co_flags & _RESUMES
            and inner.caller is not None
            and inner.caller is call.visit
        )

    def _bind(self, call: Call, values: Mapping[str, Any], event: int) -> None:
        held, key_of = call.held, self._key_of
        now: dict[str, Key] = {}
        for name, tensor in _tensors(values):
            key = key_of(tensor)
            if key is not None:
                now[name] = key
                if held.get(name) != key:
                    self.bindings.append(Binding(event, call, name, key))
        for name in held.keys() - now.keys():
            self.bindings.append(Binding(event, call, name, None))
        call.held = now


def _is_marked(frame: FrameType, call: Call) -> bool:
    """Return whether a call is that of a frame, and not another one in the same memory."""
    trace: object = frame.f_trace
    return trace is call


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
            for key, each in [*value.items()]:  # Another thread may change the dictionary.
                if type(each) in PLAIN and (type(key) is int or (type(key) is str and key.isprintable())):
                    yield f"{name}[{_quoted(key)}]", each


def _quoted(key: str | int) -> str:
    return repr(key) if isinstance(key, int) else '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _values(frame: FrameType, *, only_own: bool = False) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return what the names of a frame hold, `_UNBOUND` if nothing, and the identities of its own variables.

    Only the frame itself changes its own variables.  Both are empty if reading them changed the program.
    """
    names = _names_of(frame.f_code)
    if names.shared or (names.copied and _is_traced()):
        return {}, ()
    found = frame.f_locals
    if not names.copied and type(found) not in _NAMESPACES:
        return {}, ()  # It may run code of the user.
    values = {name: found.get(name, _UNBOUND) for name in (names.own if only_own else names.variables)}
    if names.copied and sys.getrefcount(found) <= _REFERENCES:
        found.clear()  # Otherwise tensors would live longer than without a recording.
    content = tuple([id(values[name]) for name in names.own])
    if not only_own:
        for name in names.globals:
            values[name] = dict.get(frame.f_globals, name, _UNBOUND)
        for parent, attribute, spelled in names.paths:
            values[spelled] = _attribute(values.get(parent, _UNBOUND), attribute)
    return values, content


_REFERENCES = 3
"""The references to the dictionary of locals if only the frame and `_values` hold it."""

_NAMESPACES = (dict, *(() if _COPIES_LOCALS else (type((lambda: sys._getframe().f_locals)()),)))
"""The types of the locals of frames whose methods run no code of the user."""

_NATIVE_TRACERS = ("coverage", "cProfile", "_lsprof")
"""The packages of tracers and profilers that do not read the locals of frames, as those in Python do."""


def _is_traced() -> bool:
    """Return whether a tracer or profiler reads and writes the dictionary of the locals of frames."""
    found = sys.gettrace(), sys.getprofile()
    return found != _UNTRACED and any(
        each is not None and type(each).__module__.partition(".")[0] not in _NATIVE_TRACERS for each in found
    )


_UNTRACED = None, None


def _attribute(value: Any, name: str) -> Any:
    """Return the attribute of an object if no code of its class runs for it; otherwise `_UNBOUND`."""
    kind = type(value)
    if value is _UNBOUND or kind in PLAIN:
        return _UNBOUND
    of_class: Any = _UNBOUND
    for base in _BASES(kind)[:-1]:
        members = _MEMBERS(base)
        if "__getattribute__" in members and base not in _USUAL:
            return _UNBOUND
        if of_class is _UNBOUND:
            of_class = members.get(name, _UNBOUND)
    if type(of_class) in _FIELDS:
        try:
            return of_class.__get__(value, kind)
        except AttributeError:
            return _UNBOUND
    if hasattr(type(of_class), "__set__"):
        return _UNBOUND
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = {}
    if name in own:
        return own[name]
    if of_class is not _UNBOUND:
        return _UNBOUND if hasattr(type(of_class), "__get__") else of_class
    if issubclass(kind, torch.nn.Module):
        for part in ("_parameters", "_buffers", "_modules"):
            # A subclass of dict may run code, such as DeepSpeed's, which gathers a parameter.
            found = dict.get(own.get(part, _NO_PARTS), name, _UNBOUND)
            if found is not _UNBOUND:
                return found
    return _UNBOUND


_NO_PARTS: dict[str, Any] = {}

_BASES: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
_MEMBERS: Callable[[type], Mapping[str, Any]] = type.__dict__["__dict__"].__get__

_USUAL = (type, ModuleType)
"""Types whose `__getattribute__` runs no code of the user."""

_FIELDS = (MemberDescriptorType, type(vars(namedtuple("_Single", "field"))["field"]))
"""The descriptors of slots and of the fields of named tuples."""


# -- names of code -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _CodeNames:
    """The names of code: variables, those that only its own frame changes, global variables, attributes.

    An attribute is (what has it, its own name, its path).  `copied`: whether the dictionary of the locals is
    a copy.  `shared`: whether the code may have this copy, which changes when it is read again.
    """

    variables: tuple[str, ...]
    own: tuple[str, ...]
    globals: tuple[str, ...]
    paths: tuple[tuple[str, str, str], ...]
    copied: bool
    shared: bool


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
    paths = dict.fromkeys(_paths(code))
    copied = _COPIES_LOCALS and optimized
    return _CodeNames(
        tuple(variables),
        tuple(name for name in variables if name not in changed),
        tuple(path[0] for path in paths if len(path) == 1 and path[0] not in variables),
        tuple((".".join(path[:-1]), path[-1], ".".join(path)) for path in paths if len(path) > 1),
        copied,
        copied and _reads_locals(code),
    )


_USES_NAMES = ("LOAD_NAME", "STORE_NAME", "LOAD_GLOBAL", "STORE_GLOBAL")


def _reads_locals(code: CodeType) -> bool:
    """Return whether code may have the dictionary of its own locals, as from `locals()` or `eval(text)`."""
    if not {"_getframe", "currentframe"}.isdisjoint(code.co_names):
        return True
    rest = [*dis.get_instructions(code)]
    return any(
        each.opname in ("LOAD_GLOBAL", "LOAD_NAME")
        and each.argval in _READ_LOCALS
        and not 0 <= _READ_LOCALS[each.argval] < _arguments_of(rest[number:])
        for number, each in enumerate(rest)
    )


_READ_LOCALS = {"locals": -1, "vars": 0, "dir": 0, "eval": 1, "exec": 1}
"""Functions that read the locals of their caller, if they get no more arguments than this."""


def _arguments_of(instructions: Sequence[dis.Instruction]) -> int:
    """Return the number of arguments of the call of the function that the first instruction loads.

    It is 0 if the function is not called here, or with an unknown number.
    """
    depth = 0
    for each in instructions:
        depth += dis.stack_effect(each.opcode, each.arg, jump=False)
        if depth <= 1 and each is not instructions[0]:
            return each.arg or 0 if each.opname in ("CALL", "CALL_KW") else 0
    return 0


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
