"""Follow the user's frames while a step is recorded: calls, executions of lines, names of tensors."""

from __future__ import annotations

import dis
import linecache
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_OPTIMIZED
from types import CodeType, FrameType, MemberDescriptorType, ModuleType
from typing import Any, TypeAlias

import torch

from nncdbg.torch.sharded_tensors import PLAIN
from nncdbg.torch.source_lines import Lines, Places, lines_of, user_frame, user_frames
from nncdbg.torch.step_call import StepCall
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


class UserCall:
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

    def __init__(self, call: UserCall, line: int) -> None:
        self.call = call
        self.line = line


@dataclass(frozen=True, slots=True, eq=False)
class OuterFrames:
    """The frames around a call that runs again: the visit of the innermost one, and the names bound since."""

    visit: Visit | None
    names: Sequence[tuple[UserCall, Mapping[str, Any]]] = ()


class NameBinding:
    """From before event number `event` on, a name of a call holds the memory `key`; None for no tensor."""

    __slots__ = ("call", "event", "key", "name")

    def __init__(self, event: int, call: UserCall, name: str, key: Key | None) -> None:
        self.event = event
        self.call = call
        self.name = name
        self.key = key


@dataclass(frozen=True)
class RecordedSource:
    """The names of the user that were bound, the number of the outermost calls that began before, and files.

    The innermost call at the beginning of the recording is not one of these calls.  `texts` are the lines of
    the files that ran.
    """

    bindings: Sequence[NameBinding] = ()
    callers: int = 0
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)


class SourceFrames:
    """The frames of the user at the operators of a recording.

    `key_of` returns the memory of a tensor, None without one, and keeps its number from being used again.
    Without it, names are not followed, and only the frames that have moved are entered at an operator.
    """

    def __init__(self, key_of: Callable[[Any], Key | None] | None) -> None:
        self.bindings: list[NameBinding] = []
        self._key_of = key_of
        self.callers = 0
        """The number of outermost frames that called the one in which the recording began."""
        self._recording = object()
        """In the calls of this recording."""
        self._inner: UserCall | None = None
        """The innermost call at the last operator, None for the call of a generator or coroutine."""
        self._traced: dict[int, UserCall] = {}
        """The calls at the last operator whose frames a debugger traces, by the identity of the frame."""
        self._files: set[str] = set()
        """The files of the calls: Python learns from where it reads them, such as an archive."""
        self._backward = NO_BACKWARD
        """The number of the backward pass of the last operator."""
        self._rest: tuple[object, Visit | None] = (), None
        """What called the outermost frame, as `user_frames` returns it, and the visit of this."""

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
        if self._key_of is None and not self._traced:
            moved, caller = self._moved_frames(frame)
            if caller is not None:
                return self._enter_calls(moved, caller, event)
        return self._enter_frames(*user_frames(frame), event)

    def _moved_frames(self, frame: FrameType) -> tuple[Sequence[FrameType], Visit | None]:
        """Return the frames from the innermost to the first with a call, and the visit that called this one.

        Those around it have not moved since they were entered: it still runs.
        """
        found: list[FrameType] = []
        outer: FrameType | None = frame
        while (inner := user_frame(outer)) is not None:
            found.append(inner)
            trace: Any = inner.f_trace
            if self._is_own(trace) and not inner.f_code.co_flags & _RESUMES:
                caller: Visit | None = trace.caller
                return found, caller
            outer = inner.f_back
        return found, None

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

    def _enter_frames(self, frames: Sequence[FrameType], rest: Any, event: int) -> Visit | None:
        """Enter all frames, innermost first, and return the visit of the innermost one."""
        if rest != self._rest[0]:
            if isinstance(rest, OuterFrames):
                self._rest = rest, rest.visit
                for outer, tensors in rest.names:
                    self._bind(outer, tensors, event)
            else:
                self._rest = rest, _visit_of(rest)
        return self._enter_calls(frames, self._rest[1], event)

    def _enter_calls(self, frames: Sequence[FrameType], caller: Visit | None, event: int) -> Visit | None:
        """Enter frames that `caller` has called, and return the visit of the innermost one."""
        named = self._key_of is not None
        calls = [self._call_of(frame) for frame in frames]
        self._traced.clear()
        self._inner = None
        for depth in range(len(frames) - 1, -1, -1):
            frame, last = frames[depth], calls[depth]
            resumes = frame.f_code.co_flags & _RESUMES
            values, content = _values(frame) if named else ({}, ())
            call = last
            if call is None or call.caller is not caller:
                code = frame.f_code
                if code.co_filename not in self._files:
                    self._files.add(code.co_filename)
                    linecache.lazycache(code.co_filename, frame.f_globals)
                call = calls[depth] = UserCall(code.co_filename, code.co_qualname, caller, self._recording)
                if frame.f_trace is None or self._is_own(frame.f_trace):
                    frame.f_trace = call
            if not _is_marked(frame, call):
                self._traced[id(frame)] = call
            inner = calls[depth - 1] if depth else None
            if inner is None or not self._waits(call, inner, frames[depth - 1]):
                call.move(frame, content if named else _values(frame, only_own=True)[1])
            if named:
                self._bind(call, values, event)
            caller = call.visit
            self._inner = None if resumes else call
        return caller

    def _is_own(self, trace: object) -> bool:
        """Return whether the trace function of a frame is a call of this recording."""
        return type(trace) is UserCall and trace.recording is self._recording

    def _call_of(self, frame: FrameType) -> UserCall | None:
        """Return the call of a frame; None if it has begun since the last operator."""
        trace: object = frame.f_trace
        if type(trace) is UserCall and trace.recording is self._recording:
            return trace
        call = None if trace is None else self._traced.get(id(frame))
        code = frame.f_code
        return (
            call
            if call is not None and (call.file, call.function) == (code.co_filename, code.co_qualname)
            else None
        )

    def _waits(self, call: UserCall, inner: UserCall, frame: FrameType) -> bool:
        """Return whether a call has not moved since the last operator, as `inner` in its frame still runs."""
        return (
            _is_marked(frame, inner)
            and not frame.f_code.co_flags & _RESUMES
            and inner.caller is not None
            and inner.caller is call.visit
        )

    def _bind(self, call: UserCall, values: Mapping[str, Any], event: int) -> None:
        held, key_of = call.held, self._key_of
        assert key_of is not None
        now: dict[str, Key] = {}
        for name, tensor in _tensors(values):
            key = key_of(tensor)
            if key is not None:
                now[name] = key
                if held.get(name) != key:
                    self.bindings.append(NameBinding(event, call, name, key))
        for name in held.keys() - now.keys():
            self.bindings.append(NameBinding(event, call, name, None))
        call.held = now


def _is_marked(frame: FrameType, call: UserCall) -> bool:
    """Return whether a call is that of a frame, and not another one in the same memory."""
    trace: object = frame.f_trace
    return trace is call


def _visit_of(lines: Lines) -> Visit | None:
    """Return the visit of the first of some lines, whose calls have no frames."""
    visit = None
    for file, line in reversed(lines):
        visit = Visit(UserCall(file, "", visit), line)
    return visit


# -- frames of a second run ----------------------------------------------------------------


@dataclass(slots=True)
class _TapedFrame:
    """A frame that made calls of a tape: its code, or file, and the instruction, or line, of the last one."""

    code: CodeType | str
    at: int
    call: UserCall
    bound: dict[str, Any] = field(default_factory=dict)
    """The tensors of the second run that its variables hold, as far as they are certain."""


class TapedFrames:
    """The frames of the user at the calls of a step, which runs again.

    `running` are those that still run, innermost first: their variables are names of a call if they still
    hold what they held then.  Of another frame, only operands of Python's operators have names: the `a` and
    `b` of `a - b`.
    """

    def __init__(self, calls: Sequence[StepCall], running: Sequence[FrameType]) -> None:
        self._stack: list[_TapedFrame] = []
        self._entered = 0
        """The number of calls that have been entered."""
        self._bound: dict[tuple[int, int], dict[str, Any]] = {}
        """The number of a call, and the depth of a frame, to the variables that are bound before the call."""
        outermost_first = [each.places[::-1] for each in calls]
        around: list[tuple[CodeType | str, int]] = []
        for depth, frame in enumerate(reversed(running)):
            self._find_bindings(depth, frame, outermost_first, around)
            around.append((frame.f_code, frame.f_lasti))

    def _find_bindings(
        self,
        depth: int,
        frame: FrameType,
        calls: Sequence[Places],
        around: Sequence[tuple[CodeType | str, int]],
    ) -> None:
        """Enter the variables of a frame at the first call after the last change of each."""
        code, now = frame.f_code, frame.f_lasti
        ahead: list[tuple[int, int]] = []
        for number in range(len(calls) - 1, -1, -1):
            places = calls[number]
            # Before a jump back, or in another run of the function, variables may have held something else.
            same = len(places) > depth and places[depth][0] is code and [*places[:depth]] == [*around]
            if not same or places[depth][1] > (ahead[-1][1] if ahead else now):
                break
            ahead.append((number, places[depth][1]))
        if not ahead:
            return
        changes = _last_changes(code, now)
        for name, tensor in _tensors(_values(frame, only_own=True)[0]):
            changed = changes.get(name.partition("[")[0], -1)
            number = next((number for number, at in reversed(ahead) if at > changed), len(calls))
            self._bound.setdefault((number, depth), {})[name] = tensor

    def enter(self, taped: StepCall, now: Callable[[Any], Any]) -> OuterFrames:
        """Return the frames around the next call; `now` returns a tensor of the second run."""
        number, self._entered = self._entered, self._entered + 1
        places = taped.places
        stack, caller, moved = self._stack, None, False
        for depth, (code, at) in enumerate(reversed(places)):
            last = stack[depth] if depth < len(stack) and not moved else None
            if last is None or last.code is not code:
                del stack[depth:]
                call = (
                    UserCall(code, "", caller)
                    if isinstance(code, str)
                    else UserCall(code.co_filename, code.co_qualname, caller)
                )
                last = _TapedFrame(code, -1, call)
                stack.append(last)
            moved = moved or last.at != at
            visit = last.call.visit
            if visit is None or at != last.at:
                line = next((line for _, line in lines_of(((code, at),))), 0)
                if visit is None or visit.line != line or at < last.at:
                    last.call.visit = Visit(last.call, line)
            last.at, caller = at, last.call.visit
        del stack[len(places) :]
        for depth, frame in enumerate(stack):
            bound = self._bound.get((number, depth), {})
            if frame is stack[-1]:
                bound = {**_operands(taped, frame), **bound}
            frame.bound |= {name: now(tensor) for name, tensor in bound.items()}
        return OuterFrames(caller, [(frame.call, dict(frame.bound)) for frame in stack if frame.bound])


def _operands(taped: StepCall, frame: _TapedFrame) -> Mapping[str, Any]:
    """Return the variables that are the operands of a taped call, if Python's operator made it."""
    operator = getattr(taped.function, "overloadpacket", None)
    operands = taped.args
    if isinstance(frame.code, str) or operator is None or len(operands) != 2:
        return {}
    symbol, *names = _operation(frame.code, frame.at)
    both = all(type(each) in PLAIN for each in operands)
    if not (both and operator.__name__ in _FUNCTIONS.get(symbol, ())):
        return {}
    return dict(zip(names, operands, strict=True))


_FUNCTIONS = {"+": ("add",), "-": ("sub",), "*": ("mul",), "/": ("div",), "@": ("mm", "mv"), "**": ("pow",)}
"""Python's operators, and the operators of torch that compute them of two tensors."""


@cache
def _operation(code: CodeType, at: int) -> tuple[str, ...]:
    """Return Python's operator at an instruction, and the variables that are its two operands.

    Without an operator, or if the function may have changed one of them since, the result is ("",).
    """
    instructions = [*dis.get_instructions(code)]
    index = next((n for n, each in enumerate(instructions) if each.offset == at), 0)
    loads: list[str] = []
    for each in reversed(instructions[max(index - 2, 0) : index]):
        if each.opname.startswith("LOAD_FAST") and len(loads) < 2:
            names = each.argval if isinstance(each.argval, tuple) else (each.argval,)
            loads = [*map(str, names), *loads][-2:]
        elif len(loads) < 2:
            return ("",)
    loops = any("JUMP_BACKWARD" in each.opname for each in instructions)
    changes = _last_changes(code, len(code.co_code))
    unchanged = all(changes.get(name, -1) < (0 if loops else at) for name in loads)
    is_operation = instructions[index].opname == "BINARY_OP" and len({*loads}) == 2
    return (instructions[index].argrepr, *loads) if is_operation and unchanged else ("",)


def _last_changes(code: CodeType, before: int) -> dict[str, int]:
    """Return the last instruction before a position that binds each variable of code."""
    found: dict[str, int] = {}
    for each in dis.get_instructions(code):
        if each.offset < before and each.opname.startswith(_CHANGES):
            names = each.argval if isinstance(each.argval, tuple) else (each.argval,)
            found |= {str(name): each.offset for name in names}
    return found


_CHANGES = ("STORE_", "DELETE_", "LOAD_FAST_AND_CLEAR")


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
