"""Keep what a training step calls at its top level, so that the step can run again.

These calls are: each outermost module, `backward`, and the operators between them, such as the loss.  The
mode that sees operators is off inside of modules, backward passes and optimizers, so it costs little there.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from nncdbg.engine.ops.aten.internals import (
    MODE_FLAGS,
    DispatchMode,
    check_whole_graphs,
    count_whole_graphs,
    innermost_mode,
    is_wrapped,
    mode_flags,
    random_tag,
    storage_address,
    tell_compiler_of_mode,
    unseen_by_functions,
)
from nncdbg.engine.ops.aten.operators import DETACH
from nncdbg.engine.ops.aten.signatures import overloads, signature_of, written_tensors
from nncdbg.torch.guard_findings import OriginWatch
from nncdbg.torch.guard_kernels import LIBRARY
from nncdbg.torch.module_states import WrittenStates
from nncdbg.torch.recording import UNSEEN
from nncdbg.torch.source_lines import compiled_calls, user_places, warning_at_caller
from nncdbg.torch.step_call import BACKWARD, REGISTER_HOOK, Evaluation, StepCall, history_of, tensors_in
from nncdbg.torch.step_state import KeptState, RandomState

# -- pauses of a dispatch mode, and work of nncdbg -----------------------------------------

# Both classes exist in guard_kernels.cpp too, with the same names: a step of a training needs each several
# times, when none of the code is in the processor's caches.


def new_pause(mode: DispatchMode, library: Any | None, *, enters: bool) -> Pause:
    """Return the pauses of a mode, made by the library if there is one.

    Without `enters`, pauses are only counted.
    """
    if library is None or tell_compiler_of_mode is None:
        return Pause(mode, enters)
    pause: Pause = library.Pause(
        mode, mode_flags, *MODE_FLAGS, tell_compiler_of_mode, count_whole_graphs, enters
    )
    return pause


def new_own_work(library: Any | None) -> OwnWork:
    """Return blocks of own work, made by the library if there is one."""
    work: OwnWork = OwnWork() if library is None else library.OwnWork()
    return work


class Pause:
    """The pauses of a dispatch mode, which may be nested: the mode is left while one lasts."""

    def __init__(self, mode: DispatchMode, enters: bool) -> None:
        self.depth = 1
        """The number of pauses that last now; 1 before `start`, and after `stop`."""
        self._mode = mode
        self._enters = enters
        self._entered = False
        self._stopped = True

    def start(self) -> None:
        """Enter the mode on this thread."""
        self.depth, self._stopped = 0, False
        self._enter()

    def stop(self) -> None:
        """Leave the mode until `start`."""
        self._leave()
        self.depth, self._stopped = 1, True

    def begin(self) -> None:
        self.depth += 1
        self._leave()

    def end(self) -> None:
        if self._stopped:
            return
        self.depth = max(self.depth - 1, 0)
        if not self.depth:
            self._enter()

    def is_innermost(self) -> bool:
        """Return whether the mode is entered, and no mode of the user after it."""
        return self._entered and innermost_mode() is self._mode

    def _enter(self) -> None:
        if self._enters and not self._entered:
            self._mode.__enter__()
            self._entered = True
            check_whole_graphs(False)

    def _leave(self) -> None:
        """Leave the mode; one that the user entered after it must end first, and then this one only idles."""
        if self.is_innermost():
            self._mode.__exit__(None, None, None)
            self._entered = False
            check_whole_graphs(True)


class OwnWork:
    """Nested blocks whose operators are those of nncdbg: a watch is inactive in them.

    No function mode and no subclass of the user sees the functions that are called in them.
    """

    def __init__(self) -> None:
        self.depth = 0
        """The number of blocks that run now."""
        self.watch: OriginWatch | None = None
        self._stopped: OriginWatch | None = None
        """The watch that the outermost block has made inactive."""
        self._unseen: Any = None

    def __enter__(self) -> None:
        watch = self.watch
        if not self.depth:
            self._unseen = unseen_by_functions()
            self._unseen.__enter__()
        if not self.depth and watch is not None and watch.active:
            watch.active, self._stopped = False, watch
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        if not self.depth:
            self._unseen.__exit__(None, None, None)
        if not self.depth and self._stopped is not None:
            self._stopped.active, self._stopped = True, None


# -- the tape ------------------------------------------------------------------------------

_MANY = 64
"""So few calls are kept even if their results are not used any more."""

_FEW = 8
"""The same if a module in the mode of evaluation computes gradients: each call keeps a graph of autograd."""

FEW_EVALUATIONS = 4
"""The number of evaluations, such as calls of a teacher, that are always kept for the next step."""

MUCH_EVALUATED = 1 << 27
"""After so many bytes of more evaluations, what came before them is no longer kept."""

FORGOTTEN = "the step begins after much memory of modules without gradients: their results are inputs"
"""The note about a step of which this is true."""

_WITH_EFFECTS = (BACKWARD, REGISTER_HOOK)
"""Functions with effects on other tensors than their results."""

LONGEST = 20_000
"""The most calls that a tape keeps.  A step with more cannot run again from its tape."""


class Tape(DispatchMode):
    """The calls of a step, kept while the tape is entered and not paused.

    Without `keeps_operators`, these are only modules and functions of autograd.
    """

    def __init__(
        self, *, keeps_operators: bool = True, gradients: Callable[[], Iterable[Any]] = tuple
    ) -> None:
        super().__init__()
        self.calls: list[StepCall] = []
        self.start: RandomState | None = None
        """The state of the random generators before the first call."""
        self.kept: dict[int, KeptState] = {}
        """The buffers of each outermost module before its first call, and other states, by identity."""
        self.written = WrittenStates(gradients)
        """The memory from before the step that operators of the tape wrote to."""
        self._made: set[int] = set()
        """The storages of results, as far as they were searched."""
        self._searched = 0
        """The number of calls whose results were searched."""
        self._least = self._many = _MANY
        """The number of calls at which unused ones are dropped, at the least and now."""
        self._evaluations = self._bytes = 0
        """The number of evaluations, and the bytes of their results, since calls were forgotten."""
        self.has_forgotten = False
        """Whether evaluations of this step were forgotten."""
        self.overflowed = False
        self.compiler: Any = None
        """The backend of the last compiled function that ran since the first call; None if none did."""
        self._compiled_before = 0
        """The number of calls of compiled functions before the first call."""
        self.has_drawn = False
        """Whether numbers were drawn outside of the kept modules and functions, or may have been."""
        self._updates: list[tuple[Any, int]] = []
        """Each update of an optimizer, and the number of calls before it."""
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        """The optimizers that ended an update."""
        self._last: weakref.ref[Any] | None = None
        """The one of them that last ended one alone."""
        library = LIBRARY.module()
        self.own_work: OwnWork = new_own_work(library)
        """A block whose operators are those of nncdbg: neither the tape nor its watch sees them.

        The watch also forgets what it has found with all calls.
        """
        self._pause = new_pause(self, library, enters=keeps_operators)
        self.pause: Callable[[], None] = self._pause.begin
        """Keep no operators until `resume`; both may be nested."""
        self.resume: Callable[[], None] = self._pause.end

    @property
    def paused(self) -> bool:
        return bool(self._pause.depth)

    @property
    def is_innermost(self) -> bool:
        """Whether no mode of the user sees the operators first."""
        return self._pause.is_innermost()

    @property
    def called_compiled(self) -> bool:
        """Whether a function of torch.compile ran outside of modules: eagerly, as the tape sees operators."""
        return compiled_calls() > self._compiled_before

    def begin(self) -> None:
        """Forget all calls and start to keep calls on this thread."""
        self.clear()
        self._pause.start()

    def end(self) -> None:
        """Forget all calls and stop keeping them, until `begin`."""
        self._pause.stop()
        self.clear()

    def clear(self) -> None:
        """Forget all calls: a step starts here."""
        self.calls, self.start, self.overflowed = [], None, False
        self.has_drawn, self.compiler = False, None
        self._evaluations, self._bytes, self.has_forgotten = 0, 0, False
        self._least = self._many = _MANY
        self._compiled_before = compiled_calls()
        self.kept = {}
        self._updates = []
        self._forget_written()
        watch = self.own_work.watch
        if watch is not None:
            watch.forget()

    def clear_through(self, last: Sequence[StepCall]) -> None:
        """Forget the calls up to the last one of `last`, and those that use their results.

        What the script computes since from other tensors, such as the next batch, belongs to the next part.
        """
        ended = {id(each) for each in last}
        count = next((n for n in range(len(self.calls), 0, -1) if id(self.calls[n - 1]) in ended), None)
        earlier, later, start = self.calls[:count], [] if count is None else self.calls[count:], self.start
        old = {id(each) for call in earlier for each in tensors_in(call.result)}
        new: set[int] = set()
        kept = []
        for call in later:
            given = {id(each): each for each in tensors_in((call.args, call.kwargs))}
            made = {id(each) for each in tensors_in(call.result)}
            if any(key in old or (key not in new and history_of(each)) for key, each in given.items()):
                old |= made
            else:
                new |= made
                kept.append(call)
        self.clear()
        if kept:
            self.calls, self.start, self.has_drawn = kept, start, True
            for call in kept:
                call.rewrites = False

    def updated(self, optimizer: Any, watched: Sequence[Any]) -> None:
        """Forget the calls before the last update of an optimizer; all, if each one has made an update.

        An optimizer may use what was computed before the update of another one.  A training without named
        optimizers learns the last one of the first round by its first update, which ends that round.
        """
        if len(watched) == 1 and watched[0] is optimizer:
            if self._last is None or self._last() is not optimizer:
                self._known.add(optimizer)
                self._last = weakref.ref(optimizer)
            self.clear()
            return
        before = [count for each, count in self._updates if each is optimizer]
        dropped = before[-1] if before else 0
        del self.calls[:dropped]
        self._updates = [(each, count - dropped) for each, count in self._updates if count > dropped]
        self._updates.append((optimizer, len(self.calls)))
        self._forget_written()
        updated, known = {id(each) for each, _ in self._updates}, {id(each) for each in self._known}
        first = id(optimizer) not in known
        self._known.add(optimizer)
        needed = {id(each) for each in watched}
        if updated >= needed or (first and known | {id(optimizer)} >= needed):
            self.clear()

    def evaluates_with_gradients(self) -> None:
        """Drop unused calls sooner: a module in the mode of evaluation computes gradients."""
        if self._least != _FEW:
            self._least = self._many = _FEW

    def evaluated(self, call: Evaluation, result: Any) -> None:
        """Enter the result of an evaluation."""
        # A list of the tensors is all that an evaluation needs.
        call.result = found = [*tensors_in(result)]
        self._evaluations += 1
        self._bytes += sum(each.nbytes for each in found if each.layout is torch.strided)

    def drop_unused(self) -> None:
        """Forget calls with results that are not used any more, if there are many, as in an evaluation.

        After much memory of evaluations, forget all calls if no gradient depends on one: calls keep their
        arguments, and a script that adds up its losses uses the results of all.
        """
        if self._bytes >= MUCH_EVALUATED and self._evaluations > FEW_EVALUATIONS:
            self._evaluations = self._bytes = 0
            results = (each for call in self.calls for each in tensors_in(call.result))
            has_effects = any(call.name in _WITH_EFFECTS for call in self.calls)
            if not has_effects and not any(each.requires_grad for each in results):
                self.clear()
                self.has_forgotten = True
        if len(self.calls) < self._many:
            return
        kept = []
        while self.calls:
            call = self.calls.pop()
            if call.rewrites or call.name in _WITH_EFFECTS or _is_used(call):
                kept.append(call)
        self.has_drawn = True
        self.calls = kept[::-1]
        self._searched = 0
        self._many = max(self._least, 2 * len(kept))

    def _forget_written(self) -> None:
        """Forget what was written: an update has changed it since."""
        self.written.clear()
        if self._searched:
            self._made, self._searched = set(), 0
        for call in self.calls:
            call.rewrites = False

    def _made_storages(self) -> set[int]:
        """Return the storages of results that no argument has."""
        for call in self.calls[self._searched :]:
            given = {*_storages_of((call.args, call.kwargs))}
            self._made.update(each for each in _storages_of(call.result) if each not in given)
        self._searched = len(self.calls)
        return self._made

    @contextmanager
    def left(self) -> Iterator[None]:
        """Pause in the block, whose operators are those of nncdbg."""
        self.pause()
        try:
            with self.own_work:
                yield
        finally:
            self.resume()

    def add(self, call: StepCall) -> None:
        """Append a call."""
        if len(self.calls) >= LONGEST:
            self.calls, self.overflowed = [], True
        elif not self.overflowed:
            self.calls.append(call)

    @warning_at_caller
    def run(self, call: StepCall) -> Any:
        """Append a call and make it, without the operators inside of it."""
        __tracebackhide__ = True
        self.add(call)
        self.pause()
        try:
            call.result = call.function(*call.args, **call.kwargs)
        finally:
            self.resume()
        return call.result

    def starting(self) -> RandomState | None:
        """Keep the state of the random generators before the first call; return it until there is one."""
        if self.start is None:
            self.start = RandomState()
        elif self.calls or self.has_drawn or self.overflowed:
            return None
        return self.start

    def random_state(self) -> RandomState:
        """Return the state of the random generators, which is the kept one right before the first call."""
        return RandomState() if self.paused else self.starting() or RandomState()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if self._pause.depth or self.own_work.depth or func.namespace in UNSEEN:
            return func(*args, **(kwargs or {}))
        self.starting()
        call = StepCall(func, args, kwargs or {}, user_places(sys._getframe(1)), torch.is_grad_enabled())
        if random_tag in getattr(func, "tags", ()):
            # A second run leaves some calls out, and with them the numbers that they draw.
            call.random = RandomState()
            self.has_drawn = True
        generator = call.kwargs.get("generator")
        if generator is not None:
            call.generator = generator, generator.get_state()
        signature = signature_of(func)
        if signature.written:
            written = written_tensors(signature, args, call.kwargs)
            call.rewrites = self.written.before_write(call, written, self._made_storages)
        call.result = func(*args, **call.kwargs)
        self.add(call)
        return call.result


(_DETACH,) = overloads(DETACH)


def _is_used(call: StepCall) -> bool:
    """Return whether anything but this call refers to a tensor of its result.

    Autograd detaches results that it saves; a second run can use the same tensor.
    """
    if call.function is _DETACH:
        return False
    found = [*tensors_in(call.result)]
    if isinstance(call, Evaluation):
        return bool(found)
    if not found:
        # Another object may have tensors in it.  Numbers that the script has read are part of later calls.
        return not isinstance(call.result, _NUMBERS)
    # The references: `call.result` or what it contains, `found`, `each` and the argument.
    return any(sys.getrefcount(each) > _OWN_REFERENCES for each in found)


_OWN_REFERENCES = 4

_NUMBERS = (type(None), bool, int, float, complex)


def _storages_of(value: Any) -> Iterator[int]:
    for each in tensors_in(value):
        if each.layout is torch.strided and not is_wrapped(each):
            yield storage_address(each)
