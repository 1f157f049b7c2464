"""Hear of calls in torch: compiled functions, modules, updates, backward passes, unseen writes; of forks."""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial, wraps
from itertools import chain
from types import FrameType, FunctionType, MethodType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from nncdbg.engine.ops.aten.internals import (
    CompiledResult,
    compiled_call_ends,
    compiled_call_functions,
    compiles_body,
    is_compiled_call,
    module_entry,
    not_compiled,
    unseen,
    when_compiler_is_imported,
)
from nncdbg.torch.source_lines import warning_at_caller

# -- functions of torch.compile ------------------------------------------------------------

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
    thread: int = field(default_factory=threading.get_ident)

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
        _waiting.append(when_compiler_is_imported(_replace_compiled_calls))
    if begun:
        _forget_ended()
        for call in _running.values():
            call.tell(*listener)

    def remove() -> None:
        if listener in _listeners:
            _listeners.remove(listener)
            _restore_compiled_calls()

    return remove


def _forget_ended() -> None:
    """Forget the calls whose frame has ended without the use of the function at its end.

    The frames of other threads are not read: Python 3.11 returns wrong ones of a thread that imports.
    """
    threads = {call.thread for call in _running.values()}
    # A variable that is left with the frame of this function would keep it and all of its callers.
    frames: set[int] = set()
    tops = {thread: top for thread, top in sys._current_frames().items() if thread in threads}
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


def _replace_compiled_calls() -> None:
    owner, *names = compiled_call_functions()
    replacements: tuple[Callable[[Any], Any], ...] = _begins, _ends
    for name, told in zip(names, replacements, strict=True):
        original = _originals[name] = getattr(owner, name)
        setattr(owner, name, told(original))


def _restore_compiled_calls() -> None:
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
            _restore_compiled_calls()
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


# -- calls of modules ----------------------------------------------------------------------

# `Module.__call__` stays the same function, as `torch.compile` and scripts keep it; only its code is
# exchanged. While a compiled function runs, it has torch's own code: the compiler writes what it reads into
# the conditions under which its code is valid, so that code would be compiled again at the end of the
# watch.


class _Calls:
    """The listeners to calls of modules, and the exchange of the code of `Module.__call__`."""

    def __init__(self, function: FunctionType) -> None:
        self.function = function
        self.code = function.__code__
        self.original = FunctionType(self.code, function.__globals__, function.__name__)
        self.listeners: list[Callable[[torch.nn.Module], None]] = []
        self._compiled = 0
        """The number of compiled functions that run now, on all threads."""
        self._lock = threading.Lock()

    def add(self, hear: Callable[[torch.nn.Module], None]) -> Callable[[], None]:
        """Call `hear` before each call of a module outside of compiled functions; return how to give up."""
        self.listeners.append(hear)
        ended = on_compiled_call(lambda *_: self._count(1), lambda *_: self._count(-1), begun=True)
        self._count(0)

        def remove() -> None:
            ended()
            if hear in self.listeners:
                self.listeners.remove(hear)
            self._count(0)

        return remove

    def _count(self, change: int) -> None:
        with self._lock:
            self._compiled += change
            self.function.__code__ = _HEARING if self.listeners and not self._compiled else self.code


_calls = _Calls(module_entry)
on_module_calls = _calls.add


@warning_at_caller
def _hearing(self: Any, *args: Any, **kwargs: Any) -> Any:
    __tracebackhide__ = True
    # The global names of a function are those of torch's module.
    from nncdbg.torch.hooks import _calls

    for hear in [*_calls.listeners]:
        hear(self)
    return _calls.original(self, *args, **kwargs)


_HEARING = _hearing.__code__


# -- hooks that copies of modules and compiled code do not have ----------------------------

_REDUCE = "__reduce_ex__"

_hidden: list[Sequence[RemovableHandle]] = []
"""The hooks of each block that lasts now."""


@contextmanager
def hidden_hooks(hooks: Sequence[RemovableHandle]) -> Iterator[None]:
    """Leave these hooks out of a module that is copied or pickled in the block; there may be more later.

    Blocks may overlap: those of the steps of a recording, and that of a watch.
    """
    if not _hidden:
        _replace_reduce()
    _hidden.append(hooks)
    try:
        yield
    finally:
        _hidden[:] = [each for each in _hidden if each is not hooks]
        if not _hidden:
            delattr(torch.nn.Module, _REDUCE)


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


def _replace_reduce() -> None:
    original: Any = torch.nn.Module.__reduce_ex__

    def __reduce_ex__(module: torch.nn.Module, protocol: Any) -> Any:
        reduced = original(module, protocol)
        if not isinstance(reduced, tuple) or len(reduced) < 3:
            return reduced
        return *reduced[:2], _without_hidden(module, reduced[2]), *reduced[3:]

    setattr(torch.nn.Module, _REDUCE, __reduce_ex__)


def _without_hidden(module: torch.nn.Module, state: Any) -> Any:
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


# -- backward passes, and steps of optimizers ----------------------------------------------


def on_backward(ended: Callable[[Any], None]) -> Callable[[], None]:
    """Call `ended` with its tensors at the end of each backward pass; return how to give up."""
    original = torch.autograd.backward

    @not_compiled
    @warning_at_caller
    def backward(*args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        original(*args, **kwargs)
        ended(args[0] if args else kwargs.get("tensors"))

    def restore() -> None:
        torch.autograd.backward = original

    torch.autograd.backward = backward
    return restore


def on_skipped_step(skipped: Callable[[Any], None]) -> Callable[[], None]:
    """Call `skipped` with the optimizer when a `GradScaler` ends its `step` without a step of an optimizer.

    Return a function that ends this.
    """
    scaler = torch.amp.GradScaler
    original = scaler.step
    begun = 0

    def count(*_: Any) -> None:
        nonlocal begun
        begun += 1

    @warning_at_caller
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = begun
        result = original(self, optimizer, *args, **kwargs)
        if begun == before:
            skipped(optimizer)
        return result

    hook = register_optimizer_step_pre_hook(count)
    scaler.step = step

    def restore() -> None:
        scaler.step = original
        hook.remove()

    return restore


def on_updates(
    entered: ExitStack,
    before: Callable[..., Any],
    after: Callable[..., Any],
    skipped: Callable[[Any], None],
) -> None:
    """Call functions before and after each update, and as `on_skipped_step` does, until a stack is closed."""
    entered.callback(register_optimizer_step_pre_hook(before).remove)
    entered.callback(register_optimizer_step_post_hook(after).remove)
    entered.callback(on_skipped_step(skipped))


# -- forks ---------------------------------------------------------------------------------


def leave_forks(active: Iterable[Any]) -> None:
    """Let these leave a process that the training forks, such as a worker of a DataLoader."""

    def leave() -> None:
        for each in active:
            each.leave_process()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=leave)


# -- memory that changes without an operator: storages, and views of NumPy -----------------

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
            _call_before(torch.UntypedStorage, name, unseen(keep), ended)
        for name in _OF_TENSORS:
            _call_before(torch.Tensor, name, keep_memory, ended)
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


def _call_before(owner: type, name: str, keep: Callable[[Any], None], ended: ExitStack) -> None:
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
